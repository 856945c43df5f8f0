"""TODO policies."""
