"""The dataset: its schema, and writing, reading, verifying and repairing it."""
