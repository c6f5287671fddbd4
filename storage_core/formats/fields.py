"""Positions out of a format table, in place of numbers."""

import numpy as np


def field_at(layout: np.dtype[np.void], name: str) -> int:
    """Return the byte position of a field in a layout."""
    fields = layout.fields
    if fields is None:
        raise KeyError(name)
    return int(fields[name][1])
