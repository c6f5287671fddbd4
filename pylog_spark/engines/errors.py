"""How a stage fails that this machine runs."""


class TaskFailedError(Exception):
    """A task raised an error, or its processes died."""
