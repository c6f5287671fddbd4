"""Take closed segments of a mirror into a managed root: observe, plan, commit."""
