"""Tests of storage_core.checkpoint."""
