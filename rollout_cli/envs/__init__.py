"""TODO envs."""
