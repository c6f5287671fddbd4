"""One run of an operation: scope, record, plan file, waves, and the engine that runs its tasks."""
