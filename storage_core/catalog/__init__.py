"""Topics beside their logs: configs, ids, assignments, roles of roots."""
