"""One run of an operation: scope, record, plan file, waves."""
