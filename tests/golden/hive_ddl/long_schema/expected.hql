-- write the schema to the file file:///warehouse/shop.long_schema/_schema/08fd9b7e2747a0fe.avsc, 1574 characters

-- column column_00 is added: string
-- column column_01 is added: string
-- column column_02 is added: string
-- column column_03 is added: string
-- column column_04 is added: string
-- column column_05 is added: string
-- column column_06 is added: string
-- column column_07 is added: string
-- column column_08 is added: string
-- column column_09 is added: string
-- column column_10 is added: string
-- column column_11 is added: string
-- column column_12 is added: string
-- column column_13 is added: string
-- column column_14 is added: string
-- column column_15 is added: string
-- column column_16 is added: string
-- column column_17 is added: string
-- column column_18 is added: string
-- column column_19 is added: string
-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_long_schema` SET TBLPROPERTIES ('avro.schema.url' = 'file:///warehouse/shop.long_schema/_schema/08fd9b7e2747a0fe.avsc',
    'headrace.revision' = '2-w2',
    'headrace.version' = '2');
ALTER TABLE `headrace`.`shop_long_schema` UNSET TBLPROPERTIES IF EXISTS ('avro.schema.literal');

ALTER TABLE `headrace`.`shop_long_schema` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.long_schema/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.long_schema/dt=2026-01-31/hr=08';
