"""Compare replicas of one partition: differences, possible leaders, losses."""
