"""Commands about several brokers."""
