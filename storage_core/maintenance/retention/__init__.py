"""Retention of one partition: which of its oldest segments go, why, and what keeps the others."""
