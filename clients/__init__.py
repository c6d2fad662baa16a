"""What applications import: `producer` and `consumer`, which speak registry, broker and audit.

A message goes producer → schemas → encoding → the Kafka client → delivery, and back consumer → decoding. `headrace`
exports the public names. May import `audit`, `avro_schema`, `registry.client` and `settings`, and `avro_codec` for
what a body must be.
"""
