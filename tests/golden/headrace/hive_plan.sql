-- 2 differences of 2 topics
-- orders: headrace.orders: the comparison failed: the Hive metastore refused reading table headrace.orders: no leave
-- others: headrace.others: 1 partition is missing: 2026-01-01/00
ALTER TABLE `headrace`.`others` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-01', `hr` = '00') LOCATION 'file:///warehouse/others/dt=2026-01-01/hr=00';
