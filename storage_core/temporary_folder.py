"""A temporary folder, removed at the block's end or by a signal. It is removed however the
process ends."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from storage_core.interruption import ending_in_order, removed_at_end


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for the time of a block.

    Args:
        parent: Where it is made; None for the system's folder for temporary files.
    """
    with ExitStack() as stack:
        # A signal in between would leave it, or Python's test file in the parent.
        with ending_in_order():
            folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
            # The removal, which takes time, is still part of the block.
            stack.enter_context(removed_at_end(folder.name))
            stack.enter_context(folder)
        yield Path(folder.name)
