"""Real environments and real policies, as users bring them."""
