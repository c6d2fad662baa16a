"""Producer and consumer for applications, with Schema Registry and audit.

A sent message passes producer, schemas, encoding, the Kafka client and delivery; a received one passes consumer and
decoding. `headrace` exports the public names. May import `audit`, `avro_schema`, `registry.client`, `settings`, and
`avro_codec`, which validates message bodies.
"""
