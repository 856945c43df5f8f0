"""TODO episodes."""
