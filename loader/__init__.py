"""Loads Kafka topics to Hadoop and Hive, map-only: every message becomes a row of an Avro file in a time partition,
exactly once.

The packages are the stages of a run in order: plan, read, project, write, commit, apply. The driver starts in `run`. A
task starts in `task`, which turns fetched bytes into finished files, and runs on Spark through `job`. `work_unit`
defines the values that travel between driver and tasks. `storage` is the file system interface of all stages.
"""
