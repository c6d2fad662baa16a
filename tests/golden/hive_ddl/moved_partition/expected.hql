-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_moved_partition` SET TBLPROPERTIES ('headrace.revision' = '2-w2',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_moved_partition` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.moved_partition/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.moved_partition/dt=2026-01-31/hr=08';

ALTER TABLE `headrace`.`shop_moved_partition` PARTITION (`dt` = '2026-01-31', `hr` = '06')
  SET LOCATION 'file:///warehouse/shop.moved_partition/_g2/dt=2026-01-31/hr=06';
