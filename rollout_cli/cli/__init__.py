"""TODO cli."""
