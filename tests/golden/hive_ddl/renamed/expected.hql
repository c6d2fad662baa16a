-- column key is added: string
-- column id is removed: string
-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_renamed` SET TBLPROPERTIES ('avro.schema.literal' = '{"type": "record", "name": "Event", "namespace": "shop", "fields": [{"name": "key", "type": "string", "aliases": ["id"]}, {"name": "amount", "type": "int"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}',
    'headrace.revision' = '2-w2',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_renamed` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.renamed/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.renamed/dt=2026-01-31/hr=08';
