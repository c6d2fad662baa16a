"""Alerts: findings of `pipeline.status` that pass through rules and are delivered.

`rule` has the table of rules, `alert` the pure state machine from findings to pending, firing and resolved alerts, and
`delivery` decides, also purely, which events each target must still receive. `storage` has the tables in SQL of alerts,
deliveries and silences; `message` renders requests, `target` sends them, and `evaluate` runs everything once.
"""
