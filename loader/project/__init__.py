"""Converts a message to a row of the load schema or of the quarantine, without I/O.

`messages` is the loop over records; `topic_projection` finds the writer schema of a message and compiles its conversion
with `projection`; `batches` runs conversions in the C core; `kafka_column` and `quarantine` encode the other columns.
"""
