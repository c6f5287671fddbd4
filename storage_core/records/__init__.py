"""Batches and records of a segment, as arrays side by side."""
