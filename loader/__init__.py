"""Loads Kafka topics to Hadoop and Hive, map-only: every message that has a value and can be read becomes a row of an
Avro file in a time partition, exactly once. A message that cannot be converted becomes a row of the quarantine.

The stages of a run are packages, in this order: plan, read, project, write, commit, apply. The driver starts in `run`.
A task starts in `task`, which turns fetched bytes into finished files, and runs on Spark through `job`. `work_unit`
defines the values that travel between driver and tasks. `storage` is the file system interface of all stages.
"""
