-- column order: string
-- column select: string
CREATE EXTERNAL TABLE `headrace`.`shop_quoting`
  PARTITIONED BY (`dt` string COMMENT 'day of the row\'s time in UTC, such as 2026-01-31', `hr` string COMMENT 'hour of the row\'s time in UTC, 00 to 23')
  STORED AS AVRO
  LOCATION 'file:///warehouse/shop.quoting'
  TBLPROPERTIES ('avro.schema.literal' = '{"type": "record", "name": "Event", "namespace": "shop", "fields": [{"name": "order", "type": "string", "doc": "it\'s \u0024{env:HOME}\u003B \\\\ \\"quoted\\"\\n-- next line", "default": "\\\\u0001"}, {"name": "select", "type": ["null", "string"], "default": null}]}',
    'headrace.revision' = '2-w2',
    'headrace.subject' = 'shop.quoting-value',
    'headrace.topic' = 'shop.quoting',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_quoting` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.quoting/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.quoting/dt=2026-01-31/hr=08';
