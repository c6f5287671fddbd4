"""Tests of storage_core.coordinators."""
