"""Keeping what a run takes out of local partition directories, so that it can be put back."""
