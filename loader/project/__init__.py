"""From a message to a row of the load schema, or of the quarantine: commits only, no I/O.

`messages` is the loop over records; `topic_projection` says which schema wrote one and compiles what its body becomes,
by way of `projection` and `batches`; `kafka_column` and `quarantine` encode what is not the message's own.
"""
