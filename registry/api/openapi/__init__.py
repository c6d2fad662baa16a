"""OpenAPI 3.1 document of the API, generated from the tables of operations, payloads and entities."""
