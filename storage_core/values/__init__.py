"""Keys and values as Arrow columns: what a schema says of their bytes."""
