"""The executors' side of materialize and verify where a managed partition lost its manifest."""
