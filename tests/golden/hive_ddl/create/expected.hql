-- column id: string
-- column amount: int
-- column at: timestamp
-- column price: decimal(9,2)
-- column tags: map<string,string>
CREATE EXTERNAL TABLE `headrace`.`shop_create`
  PARTITIONED BY (`dt` string COMMENT 'day of the row\'s time in UTC, such as 2026-01-31', `hr` string COMMENT 'hour of the row\'s time in UTC, 00 to 23')
  STORED AS AVRO
  LOCATION 'file:///warehouse/shop.create'
  TBLPROPERTIES ('avro.schema.literal' = '{"type": "record", "name": "Event", "namespace": "shop", "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}, {"name": "tags", "type": {"type": "map", "values": "string"}}]}',
    'headrace.revision' = '2-w2',
    'headrace.subject' = 'shop.create-value',
    'headrace.topic' = 'shop.create',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_create` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.create/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.create/dt=2026-01-31/hr=08';
