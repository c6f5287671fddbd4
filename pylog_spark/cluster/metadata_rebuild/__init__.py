"""Make a cluster's metadata anew from the log directories of its brokers."""
