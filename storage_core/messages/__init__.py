"""The records of Kafka's internal topics: declarations of their messages, and their values."""
