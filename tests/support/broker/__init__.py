"""Support for broker tests: a protocol client, record batches, sample logs, restarts."""
