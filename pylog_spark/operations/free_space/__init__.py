"""Find what can be deleted from a full disk, the safest first."""
