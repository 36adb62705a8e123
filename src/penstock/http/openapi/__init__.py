"""`/openapi.json`: the operations of this server as an OpenAPI 3.1 document."""
