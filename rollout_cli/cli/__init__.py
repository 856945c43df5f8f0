"""The command line: only here is anything printed, and only here does a process exit.

Importing a module of it loads Typer at most; commands import numpy, gymnasium and pyarrow, so help pages come
at once.
"""
