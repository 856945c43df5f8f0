"""The use case of a run, and what belongs to it: resuming, its record, the check at its end, progress and signals."""
