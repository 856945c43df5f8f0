"""The command line: one module a command. Only here is anything printed, and only here does a process exit.

Importing a module of this package loads Typer and the declared options, and nothing that runs a policy: numpy,
gymnasium and pyarrow are imported inside the commands, so that help pages come at once.
"""
