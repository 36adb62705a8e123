"""Settings: what they are, their units, and where their values come from."""
