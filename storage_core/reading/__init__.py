"""Read records of log directories: plan file ranges, yield Arrow batches. A request becomes file
ranges; each range yields Arrow batches."""
