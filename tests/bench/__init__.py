"""Timings, always as ratios between two sides measured in one run."""
