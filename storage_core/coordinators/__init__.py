"""Groups and transactions, from the partitions in which Kafka's coordinators keep them."""
