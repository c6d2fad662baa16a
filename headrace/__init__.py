"""Headrace: an Avro schema registry with an automatic Hadoop/Hive loader."""
