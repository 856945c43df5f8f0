"""The use case of a run, and its parts: resuming, its record, the check at its end, progress and signals."""
