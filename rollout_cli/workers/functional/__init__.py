"""The engine of JAX environments: one compiled scan runs many steps of many rows, with resets inside."""
