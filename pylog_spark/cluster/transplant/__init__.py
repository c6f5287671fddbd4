"""Give partitions to another, stopped cluster."""
