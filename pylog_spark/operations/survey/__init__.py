"""List the work that each step of a night would have."""
