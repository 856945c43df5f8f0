"""Layer 5: samplers decide which worker runs which episodes, and hand the episodes on in order.

Nothing is imported here: the fork server starts from this package before numpy is imported.
"""
