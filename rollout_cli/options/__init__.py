"""Options: what a run can be asked for, what each option means for its data, and where the values come from."""
