"""The records inside of batches: decompressed, decoded, and held against their headers."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, UnsupportedCompressionError
from storage_core.formats.batch_v2 import MAGIC_V2
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code
from storage_core.maintenance.verification.options import VerifyOptions
from storage_core.records.columns import RecordColumns, decode_records
from storage_core.records.payload import Limits
from storage_core.records.reader import Window

# Each bad batch costs another look at its window: neither may be the attacker's choice.
_MAX_BAD_IN_A_WINDOW: Final = 20


def check_records(
    window: Window,
    is_good: NDArray[np.bool_],
    options: VerifyOptions,
    findings: FindingCollector,
) -> None:
    """Report batches whose records cannot be read, or contradict the batch.

    Args:
        window: The window.
        is_good: bool[batches], those whose checksum is right.
        options: What a batch may expand to.
        findings: Where to report.
    """
    limits = Limits(
        max_record_bytes=options.max_record_bytes, max_batch_bytes=options.max_batch_bytes
    )
    wanted = is_good & (window.batches.magic <= MAGIC_V2) & (window.batches.magic >= 0)
    for _ in range(_MAX_BAD_IN_A_WINDOW):
        try:
            for columns in decode_records(window, wanted, limits):
                _check_columns(window, columns, findings)
                wanted[: columns.payload.end_row] = False
        except BadBytesError as error:
            row = _row_at(window, error.position)
            is_codec = isinstance(error, UnsupportedCompressionError)
            findings.add(
                Code.CODEC_UNKNOWN if is_codec else Code.RECORDS_MALFORMED,
                error.reason,
                file=window.file,
                position=window.position_of(row),
                offset=int(window.batches.base_offset[row]),
            )
            # Batches before it, in the block that could not be read, are read again without it.
            wanted[row] = False
        else:
            return
    findings.add(
        Code.RECORDS_MALFORMED,
        f"more than {_MAX_BAD_IN_A_WINDOW} such batches in {window.data.size} bytes: the rest of "
        "them was not opened",
        file=window.file,
        position=window.file_position,
    )


def _row_at(window: Window, position: int) -> int:
    """Return the batch that a position of the file lies in."""
    starts = window.batches.position + window.file_position
    return max(int(np.searchsorted(starts, position, side="right")) - 1, 0)


def _check_columns(window: Window, columns: RecordColumns, findings: FindingCollector) -> None:
    if not len(columns):
        return
    batches, batch = window.batches, columns.batch
    offset = columns.offset
    is_outside = (offset < batches.base_offset[batch]) | (offset > batches.last_offset[batch])
    is_outside |= np.append(False, (batch[1:] == batch[:-1]) & (offset[1:] <= offset[:-1]))
    is_outside &= ~batches.is_legacy[batch]
    for row in _first_of_each(batch, is_outside):
        _add(
            Code.RECORD_OFFSET_OUTSIDE_BATCH,
            f"a record says that it has offset {offset[row]}; the batch has "
            f"{batches.base_offset[batch[row]]} to {batches.last_offset[batch[row]]}, rising",
            window,
            int(batch[row]),
            findings,
        )
    newer = columns.timestamp > batches.max_timestamp[batch]
    for row in _first_of_each(batch, newer & ~batches.is_legacy[batch]):
        _add(
            Code.RECORD_NEWER_THAN_BATCH,
            f"the record at offset {offset[row]} is of {columns.timestamp[row]} ms, the batch "
            f"says that none is newer than {batches.max_timestamp[batch[row]]} ms",
            window,
            int(batch[row]),
            findings,
        )


def _first_of_each(batch: NDArray[np.int64], is_bad: NDArray[np.bool_]) -> list[int]:
    """Return the first bad record of each batch."""
    bad = np.flatnonzero(is_bad)
    _, first = np.unique(batch[bad], return_index=True)
    return [int(row) for row in bad[first]]


def _add(code: Code, message: str, window: Window, row: int, findings: FindingCollector) -> None:
    findings.add(
        code,
        message,
        file=window.file,
        position=window.position_of(row),
        offset=int(window.batches.base_offset[row]),
    )
