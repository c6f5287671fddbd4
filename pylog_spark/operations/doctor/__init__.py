"""Say whether brokers may start, and what to do first."""
