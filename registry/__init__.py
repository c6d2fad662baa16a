"""Avro schema registry with the Confluent REST API, stored in a SQL database.

`api.asgi_front` receives a request, `api` parses it, `service` decides and `storage` reads and writes the database.
`client` is the HTTP client for the other packages and for applications. README.md in this directory follows a request
through these layers.
"""
