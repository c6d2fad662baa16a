-- column amount becomes bigint, was int
-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_widened` SET TBLPROPERTIES ('avro.schema.literal' = '{"type": "record", "name": "Event", "namespace": "shop", "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "long"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}',
    'headrace.revision' = '2-w2',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_widened` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.widened/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.widened/dt=2026-01-31/hr=08';
