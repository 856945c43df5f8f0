"""What goes wrong in user code and around it, and what must come of it: one table, each row a run of the command."""
