"""Look at all partitions of a run once, for all its steps."""
