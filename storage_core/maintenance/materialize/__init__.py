"""Write the partitions of a managed root as plain directories that Kafka opens."""
