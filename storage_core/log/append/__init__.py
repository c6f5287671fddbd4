"""A partition's log as Kafka's broker sees it: segments, producers, epochs, boundaries."""
