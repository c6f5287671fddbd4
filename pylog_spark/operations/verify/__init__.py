"""Check every byte of log directories, and report findings."""
