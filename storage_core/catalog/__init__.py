"""What is known of topics beside their logs: configs, ids, assignments, roles of roots."""
