"""The roots that a run changes: a stopped broker's log directory, or a managed root."""
