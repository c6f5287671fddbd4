"""What can be done to log directories, spread over executors: observe, plan, commit, record."""
