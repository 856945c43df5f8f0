"""Policy schemes: one module for each kind of file that a library saves policies in."""
