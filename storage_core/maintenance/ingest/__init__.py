"""Ingest a mirror's closed segments into a managed root."""
