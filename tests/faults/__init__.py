"""What goes wrong in user code and around it, and what must become of it: one table, each row a run of the command."""
