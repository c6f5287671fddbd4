"""Truncation of one partition to an offset."""
