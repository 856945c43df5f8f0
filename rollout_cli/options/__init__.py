"""The options of a run: their types, their meaning for its data, and the sources of their values."""
