"""A durable single-node broker that speaks the Kafka protocol. It does not replicate; use Apache Kafka for that.

`server` accepts connections, `connection` reads frames, and the modules of `handlers` serve the requests, most of them
one API key each. They work on the partition logs (`log`), consumer groups and transactions (`coordinator`) that `node`
owns.
"""
