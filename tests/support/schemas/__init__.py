"""Avro schemas and data for tests of any package: generators, pairs of a schema and its change, and Avro Java as the
reference.
"""
