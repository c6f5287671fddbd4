"""Observe and plan work on a partition before changing anything."""
