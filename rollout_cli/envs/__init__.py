"""Layer 3: environments: the sources that they are built from, their updates and their records."""
