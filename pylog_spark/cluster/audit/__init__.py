"""Compare replicas of several brokers; predict elections and losses."""
