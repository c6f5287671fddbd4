"""Heal logs from other replicas."""
