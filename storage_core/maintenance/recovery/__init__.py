"""Recovery of one partition after an unclean shutdown: plan and execution."""
