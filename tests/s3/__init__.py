"""Real S3 servers on loopback, with faults injected between them and the store."""
