"""`/v1/notify` and `/v1/follow`: the resources of the Notify hub."""
