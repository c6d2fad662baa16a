"""A durable single-node broker that speaks the Kafka protocol. Replication is Apache Kafka's business."""
