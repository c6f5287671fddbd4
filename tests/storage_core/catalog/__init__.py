"""Tests of storage_core.catalog."""
