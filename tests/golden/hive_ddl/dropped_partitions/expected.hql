-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_dropped_partitions` SET TBLPROPERTIES ('headrace.revision' = '2-w2',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_dropped_partitions` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.dropped_partitions/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.dropped_partitions/dt=2026-01-31/hr=08';

ALTER TABLE `headrace`.`shop_dropped_partitions` DROP IF EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '04'),
  PARTITION (`dt` = '2026-01-31', `hr` = '05');
