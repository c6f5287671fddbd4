"""Write records into a log directory from many tasks, all or none."""
