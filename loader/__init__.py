"""Kafka to Hadoop and Hive, map-only: every topic into Avro files in time partitions, exactly once.

The directories are the stages of a run, in the order in which `run` calls them: plan, read, project, write, check,
decide,
follow. The driver's way begins in `run`; a task's, from fetched bytes to finished files, in `task`, which `job` brings
to Spark; `work_unit` is what travels between the two. `storage` is what all of them ask of a file system.
"""
