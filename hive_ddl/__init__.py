"""Plans and applies changes of Hive tables so that they match an Avro schema.

`plan` compares the desired `table` with the current one and returns `ops`; `render` converts these to HiveQL, and
`executors` apply them to a metastore.
"""
