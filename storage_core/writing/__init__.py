"""Records into a log directory, from many tasks at once, all of them or none."""
