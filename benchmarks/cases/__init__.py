"""The cases, by what kind of figure they give."""
