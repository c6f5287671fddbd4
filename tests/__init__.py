"""Tests; their tree mirrors the code."""
