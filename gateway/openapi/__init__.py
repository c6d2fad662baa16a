"""OpenAPI 3.1 document of the gateway's interfaces, generated from the tables of operations and components."""
