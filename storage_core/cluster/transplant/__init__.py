"""Give logs to the replicas of another, stopped cluster."""
