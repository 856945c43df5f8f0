"""TODO dataset."""
