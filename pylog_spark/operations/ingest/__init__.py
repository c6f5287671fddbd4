"""Copy closed segments into a managed root."""
