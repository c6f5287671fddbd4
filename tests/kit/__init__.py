"""What tests of Kafka logs need: builders, decoders, comparisons. Slow, plain, test only."""
