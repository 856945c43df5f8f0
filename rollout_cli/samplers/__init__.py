"""TODO samplers."""
