"""Putting back what a run took out of a partition directory."""
