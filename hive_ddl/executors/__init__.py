"""Executors of operations: `spark` uses the metastore client of a Spark session, `hiveserver` runs HiveQL through
PyHive, `printing` prints the statements.
"""
