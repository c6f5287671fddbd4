"""A job: arguments, config, session, operation, exit status."""
