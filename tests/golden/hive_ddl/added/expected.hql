-- column carrier is added: string
-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_added` SET TBLPROPERTIES ('avro.schema.literal' = '{"type": "record", "name": "Event", "namespace": "shop", "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "carrier", "type": ["null", "string"], "default": null}]}',
    'headrace.revision' = '2-w2',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_added` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.added/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.added/dt=2026-01-31/hr=08';
