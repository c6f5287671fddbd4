"""Retention of one partition: choose the oldest segments to delete. The choice says why these
segments go, and what keeps the others."""
