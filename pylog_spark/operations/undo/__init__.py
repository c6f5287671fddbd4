"""Put back what a run has changed."""
