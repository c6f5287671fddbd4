"""Compare a cluster with its copy at other offsets."""
