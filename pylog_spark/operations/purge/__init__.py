"""Delete what runs have set aside."""
