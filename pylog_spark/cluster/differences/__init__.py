"""Compare two log directories record by record."""
