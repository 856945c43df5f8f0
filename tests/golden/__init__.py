"""Data that must not change unseen: a dataset of format 3, and hashes of the values of three fixed runs."""
