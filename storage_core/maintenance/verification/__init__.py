"""Check partitions and log directories without changing them; damage becomes findings."""
