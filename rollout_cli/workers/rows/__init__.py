"""The engines of single Python environments: each row is one environment."""
