"""The bundled broker and other brokers: requests in the protocol's own words,
record batches, samples of logs.
"""
