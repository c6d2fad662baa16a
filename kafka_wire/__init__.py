"""The Kafka protocol for all packages: connections, requests, record batches, codecs.

`cluster` is the client of a Kafka cluster; it sends the `requests` over one `connection` per broker. `record_batch`
parses and builds record batches, the format in logs and on the wire; `codecs` compresses and decompresses them.
`primitives` reads and writes the types of the protocol for the broker's frequent requests.
"""
