"""The warehouse: Delta tables of events and state, their SQL, and who may write them."""
