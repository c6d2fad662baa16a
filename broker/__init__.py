"""A durable single-node broker that speaks the Kafka protocol. Replication is Apache Kafka's business.

`server` listens, `connection` reads frames, `handlers` answer one kind of request each, on the logs and groups that
`node` holds (`log`, `coordinator`).
"""
