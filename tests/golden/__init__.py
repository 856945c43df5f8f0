"""Data that must not change unseen: a dataset of format 2, and hashes of the values of three fixed runs."""
