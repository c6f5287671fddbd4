"""Tests of storage_core.messages."""
