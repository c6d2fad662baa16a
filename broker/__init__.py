"""A durable single-node broker that speaks the Kafka protocol. It does not replicate; use Apache Kafka for that.

`server` accepts connections, `connection` reads frames, and each module of `handlers` serves one API key. They work on
the partition logs (`log`) and consumer groups (`coordinator`) that `node` owns.
"""
