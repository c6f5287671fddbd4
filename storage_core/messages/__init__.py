"""Records of Kafka's internal topics: message declarations and their values."""
