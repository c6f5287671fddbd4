"""Byte layouts as tables; nothing else."""
