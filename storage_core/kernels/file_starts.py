"""Read the starts of many files of a folder. In Python each file takes four calls."""

import stat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import call_function
from storage_core.kernels._jit import kernel

# The C functions that it calls.
FUNCTIONS: Final = ("openat", "statx", "pread", "close")
# From Linux's headers: an open file itself; what is asked about it; the words of the answer, and
# where in it the numbers stand.
_ITSELF: Final = 0x1000
_BASIC_FACTS: Final = 0x7FF
FACTS_WORDS: Final = 64
_NAMES: Final = 4
_OWNER: Final = 5
_MODE: Final = 7
_SIZE: Final = 10
# Of the mode, which is half a word.
_KIND_MASK: Final = stat.S_IFMT(0xFFFF)
_REGULAR: Final = stat.S_IFREG
# A C integer, as the lower half of what a call returns; the upper half of that means nothing.
_C_INT: Final = 0xFFFFFFFF
_MOST_C_INT: Final = 0x7FFFFFFF


@kernel
def read_files(
    functions: NDArray[np.int64],
    folder: int,
    owner: int,
    flags: int,
    names: NDArray[np.uint8],
    name_at: NDArray[np.int64],
    room: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    facts: NDArray[np.uint32],
    sizes: NDArray[np.int64],
) -> int:
    """Read the starts of files that are regular, and have one name or the folder's owner.

    Args:
        functions: int64[4], addresses of ``FUNCTIONS``.
        folder: Descriptor of the open folder.
        owner: User who owns the folder.
        flags: How each file is opened.
        names: uint8[m], the names, a zero byte behind each.
        name_at: int64[n], where each begins.
        room: uint8[k], out: what was read.
        bounds: int64[n + 1], rising: where in the room each file's bytes begin and end, at most.
        facts: uint32[FACTS_WORDS], memory to work with.
        sizes: int64[n], out: how long each file is.

    Returns:
        The number of files read; fewer than n where the next one is another kind of file, or
        cannot be read.
    """
    name = np.int64(names.ctypes.data)
    no_name = name + names.size - 1
    into = np.int64(room.ctypes.data)
    for number in range(sizes.size):
        file = call_function(functions[0], folder, name + name_at[number], flags, 0, 0) & _C_INT
        if file > _MOST_C_INT:
            return number
        answer = call_function(
            functions[1], file, no_name, _ITSELF, _BASIC_FACTS, np.int64(facts.ctypes.data)
        )
        is_read = (
            answer & _C_INT == 0
            and facts[_MODE] & _KIND_MASK == _REGULAR
            and (facts[_NAMES] == 1 or facts[_OWNER] == owner)
        )
        if is_read:
            sizes[number] = np.int64(facts[_SIZE]) | np.int64(facts[_SIZE + 1]) << 32
            start = bounds[number]
            wanted = min(bounds[number + 1] - start, sizes[number])
            if wanted > 0:
                found = call_function(functions[2], file, into + start, wanted, 0, 0)
                is_read = found == wanted
        call_function(functions[3], file, 0, 0, 0, 0)
        if not is_read:
            return number
    return sizes.size
