"""How many records batches hold: by their headers, opened only where those do not say it.

Before message format v2 a compressed message does not say how many it holds.
"""

from storage_core.records.payload import DEFAULT_LIMITS, open_batches
from storage_core.records.reader import Window


def count_records_in(window: Window) -> int:
    """Return the number of records in a window's batches, control records included.

    Raises:
        BadBytesError: A compressed message of a format before v2 cannot be opened.
    """
    batches = window.batches
    is_legacy = batches.is_legacy
    is_set = batches.is_message_set
    count = int(batches.record_count[~is_legacy].sum()) + int((is_legacy & ~is_set).sum())
    row = 0
    while is_set[row:].any():
        payload = open_batches(window, is_set, row, DEFAULT_LIMITS)
        here = slice(row, payload.end_row)
        count += int(payload.batches.record_count[here][is_set[here]].sum())
        row = payload.end_row
    return count
