"""The engine of vector environments: their arrays go to time-major rings, from which episodes are gathered."""
