"""Tests of storage_core.config."""
