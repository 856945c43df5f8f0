"""JAX environments as pure functions: the protocol, one module per family, and their form as vector environments."""
