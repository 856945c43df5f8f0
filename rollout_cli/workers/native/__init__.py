"""The engine of vector environments: arrays go to time-major rings, and episodes are gathered from these."""
