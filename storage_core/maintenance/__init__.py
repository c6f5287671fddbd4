"""Observe and plan: what is to be done to a partition, decided before anything is touched."""
