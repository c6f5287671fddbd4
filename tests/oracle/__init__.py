"""Apache Kafka 4.4.0's own storage classes, in this process, as the referee of our results."""
