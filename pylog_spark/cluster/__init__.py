"""Several brokers: audit, elections, differences, copies, heal, metadata, transplant, attach."""
