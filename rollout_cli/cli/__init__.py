"""The command line. Only here is anything printed, and only here does a process exit.

Importing a module of this package loads Typer at most: numpy, gymnasium and pyarrow are imported inside the commands,
so that help pages come at once.
"""
