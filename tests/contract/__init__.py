"""One suite over every backend: what a sampler promises, whatever runs the episodes."""
