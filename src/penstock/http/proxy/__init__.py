"""The durable proxy: streaming responses of other servers, recorded into streams as they arrive."""
