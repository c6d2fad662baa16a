"""The schema registry: the Confluent REST API for Avro, on SQL.

A request comes in at `api.front`, is taken apart in `api`, decided in `service` and kept by `storage`; `client` is how
the other packages and applications reach a running one. README.md in this directory has the way of a request.
"""
