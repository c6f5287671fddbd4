"""Slow, obvious twins of the kernels, and a naive model of compaction: what must come out."""
