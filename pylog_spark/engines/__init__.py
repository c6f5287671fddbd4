"""What runs the stages of an operation: Spark, or processes of this machine."""
