"""The command line: the only package that prints or exits.

Its modules import nothing heavier than Typer. Commands import numpy, gymnasium and pyarrow when they run, so
`--help` is fast.
"""
