-- column who becomes struct<a:int,b:string>, was struct<a:int>
-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_nested_grown` SET TBLPROPERTIES ('avro.schema.literal' = '{"type": "record", "name": "Event", "namespace": "shop", "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "who", "type": {"type": "record", "name": "Who", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"], "default": null}]}}]}',
    'headrace.revision' = '2-w2',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_nested_grown` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.nested_grown/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.nested_grown/dt=2026-01-31/hr=08';
