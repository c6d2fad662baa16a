-- only if headrace.revision is 1-w1
ALTER TABLE `headrace`.`shop_unchanged_but_version` SET TBLPROPERTIES ('headrace.revision' = '2-w2',
    'headrace.version' = '2');

ALTER TABLE `headrace`.`shop_unchanged_but_version` ADD IF NOT EXISTS
  PARTITION (`dt` = '2026-01-31', `hr` = '07') LOCATION 'file:///warehouse/shop.unchanged_but_version/dt=2026-01-31/hr=07'
  PARTITION (`dt` = '2026-01-31', `hr` = '08') LOCATION 'file:///warehouse/shop.unchanged_but_version/dt=2026-01-31/hr=08';
