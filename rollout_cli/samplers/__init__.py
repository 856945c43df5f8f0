"""Layer 5: samplers, which assign episodes to workers and yield the episodes in order.

Nothing is imported here, because the fork server imports this package and must not import numpy.
"""
