"""The Kafka protocol as every package needs it: connections, requests, record batches, codecs.

`cluster` is a client of a whole cluster: it asks by `requests` over a `connection` to each broker. What brokers keep
and clients send are record batches: `record_batch` takes them apart and builds them, `codecs` decompresses them.
`primitives` reads and writes the protocol's own types, for the broker's hot requests.
"""
