"""Read the starts of many small files of a partition directory together."""

import ctypes
import os
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import CAN_CALL
from storage_core.kernels.file_starts import FACTS_WORDS, FUNCTIONS, read_files
from storage_core.local_files import CAREFUL
from storage_core.records.codecs.base import addresses_of
from storage_core.store.base import HoldableStore, LogStore

# None on a system that lacks one of them.
_FUNCTIONS: Final = addresses_of(ctypes.CDLL(None), FUNCTIONS) if CAN_CALL else None


def read_starts(
    store: LogStore, files: Sequence[str], room: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Read the starts of files at one call of machine code.

    Args:
        room: uint8[k], out: what was read.
        bounds: int64[n + 1], rising, within the room: where each file's bytes begin and end, at
            most. Behind the end of a shorter file the room is left as it was.

    Returns:
        int64[n], how long each file is. None where one has to be opened by ``store.open_file``,
        which knows every case.
    """
    if _FUNCTIONS is None or not files or not isinstance(store, HoldableStore):
        return None
    encoded = [os.fsencode(file) + b"\0" for file in files]
    names = np.frombuffer(bytearray().join(encoded), np.uint8)
    name_at = np.fromiter(accumulate(map(len, encoded[:-1]), initial=0), np.int64, len(files))
    sizes = np.zeros(len(files), np.int64)
    try:
        with store.folder() as folder:
            count = read_files(
                np.array(_FUNCTIONS, np.int64),
                folder,
                os.fstat(folder).st_uid,
                os.O_RDONLY | CAREFUL,
                names,
                name_at,
                room,
                bounds,
                np.zeros(FACTS_WORDS, np.uint32),
                sizes,
            )
    except OSError:
        return None
    return sizes if count == len(files) else None
