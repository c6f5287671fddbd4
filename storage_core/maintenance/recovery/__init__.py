"""Recovery of one partition after an unclean shutdown: what would be cut, and doing it."""
