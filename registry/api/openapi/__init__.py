"""The OpenAPI 3.1 document of the API, made of the tables that say what there is."""
