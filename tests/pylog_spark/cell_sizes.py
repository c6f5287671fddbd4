"""How large the cells of a batch are."""

import pyarrow as pa
import pyarrow.compute as pc


def largest_cell(batch: pa.RecordBatch) -> int:
    """Return the bytes of the largest value in a batch."""
    largest = 0
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            largest = max(largest, pc.max(pc.binary_length(column)).as_py() or 0)
        elif pa.types.is_list(column.type):
            sizes = [column.slice(row, 1).nbytes for row in range(len(column))]
            largest = max([largest, *sizes])
    return largest
