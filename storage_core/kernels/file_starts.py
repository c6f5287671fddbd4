"""List folders, read parts of files, and delete files by machine code: Python takes up to four
calls for each file."""

import stat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.kernels._intrinsics import call_function
from storage_core.kernels._jit import kernel
from storage_core.kernels.varint import read_u32

# The C functions that it calls.
FUNCTIONS: Final = ("openat", "statx", "pread", "close")
# From Linux's headers: an open file itself; what is asked about it; the words of the answer, and
# where in it the numbers stand.
_ITSELF: Final = 0x1000
_BASIC_FACTS: Final = 0x7FF
FACTS_WORDS: Final = 64
_NAMES: Final = 4
_OWNER: Final = 5
_GROUP: Final = 6
_MODE: Final = 7
_INODE: Final = 8
_SIZE: Final = 10
_CHANGED: Final = 24
_MODIFIED: Final = 28
_MAJOR: Final = 34
_MINOR: Final = 35
# Of the mode, which is half a word.
_KIND_MASK: Final = stat.S_IFMT(0xFFFF)
_REGULAR: Final = stat.S_IFREG
_MODE_MASK: Final = 0xFFFF
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


# From Linux's headers: an entry's fields, its kind; no folder to begin at; no link is followed.
_ENTRY_LENGTH: Final = 16
_ENTRY_KIND: Final = 18
_ENTRY_NAME: Final = 19
_REGULAR_ENTRY: Final = 8
_NO_FOLDER: Final = -100
_NO_LINK: Final = 0x100
_DOT: Final = ord(".")
# The C functions of ``scan_folder``.
SCAN_FUNCTIONS: Final = ("getdents64", "statx")
# What it tells of each entry, in columns of one number an entry.
ENTRY_MODE: Final = 0
ENTRY_INODE: Final = 1  # unsigned, in 64 bits
ENTRY_DEVICE: Final = 2
ENTRY_NAMES: Final = 3  # how many names the file has
ENTRY_USER: Final = 4
ENTRY_GROUP: Final = 5
ENTRY_SIZE: Final = 6
ENTRY_MODIFIED: Final = 7  # epoch nanoseconds; the next one, too
ENTRY_CHANGED: Final = 8
ENTRY_COLUMNS: Final = 9
NO_ROOM: Final = -1
NOT_READ: Final = -2
_NANOSECONDS: Final = 1_000_000_000
# In nanoseconds less than 2 ** 63.
_MOST_SECONDS: Final = 9_000_000_000
_NO_TIME: Final = -(2**63)


@kernel
def _is_of_itself(text: NDArray[np.uint8], name: int) -> bool:
    """Whether a name is that of a folder for itself, or for the one above it."""
    if text[name] != _DOT:
        return False
    return text[name + 1] == 0 or (text[name + 1] == _DOT and text[name + 2] == 0)


@kernel
def _time_of(facts: NDArray[np.uint32], word: int) -> int:
    """Return a time in epoch nanoseconds; the least number where it has no room in 64 bits."""
    seconds = np.int64(np.uint64(facts[word]) | np.uint64(facts[word + 1]) << np.uint64(32))
    if seconds > _MOST_SECONDS or seconds < -_MOST_SECONDS:
        return _NO_TIME
    return seconds * _NANOSECONDS + np.int64(facts[word + 2])


@kernel
def scan_folder(
    functions: NDArray[np.int64],
    folder: int,
    entries: NDArray[np.uint8],
    facts: NDArray[np.uint32],
    names: NDArray[np.uint8],
    table: NDArray[np.int64],
) -> tuple[int, int]:
    """List an open folder, with the facts of every entry; no link is followed.

    Args:
        functions: int64[2], addresses of ``SCAN_FUNCTIONS``.
        folder: Its descriptor, at its begin.
        entries: uint8[e], memory to work with, aligned for 64-bit numbers.
        facts: uint32[FACTS_WORDS], memory to work with.
        names: uint8[k], out: the names, a zero byte behind each.
        table: int64[ENTRY_COLUMNS, capacity], out.

    Returns:
        (count, used): how many entries there are, and how many bytes their names have; a count of
        NO_ROOM where more room is needed, of NOT_READ where the system says no, an entry vanishes,
        or its facts do not fit in here.
    """
    into, answer_at = np.int64(entries.ctypes.data), np.int64(facts.ctypes.data)
    count, used = np.int64(0), np.int64(0)
    while True:
        found = np.int64(call_function(functions[0], folder, into, entries.size, 0, 0))
        if found <= 0:
            return (count if found == 0 else NOT_READ), used
        at = np.int64(0)
        while at < found:
            length = np.int64(entries[at + _ENTRY_LENGTH])
            length |= np.int64(entries[at + _ENTRY_LENGTH + 1]) << 8
            name = at + _ENTRY_NAME
            at += length
            if _is_of_itself(entries, name):
                continue
            if count == table.shape[1] or used + length > names.size:
                return NO_ROOM, used
            answer = call_function(
                functions[1], folder, into + name, _NO_LINK, _BASIC_FACTS, answer_at
            )
            if answer & _C_INT != 0:
                return NOT_READ, used
            modified, changed = _time_of(facts, _MODIFIED), _time_of(facts, _CHANGED)
            size = np.int64(np.uint64(facts[_SIZE]) | np.uint64(facts[_SIZE + 1]) << np.uint64(32))
            if min(modified, changed) == _NO_TIME or size < 0:
                return NOT_READ, used
            major, minor = np.int64(facts[_MAJOR]), np.int64(facts[_MINOR])
            table[ENTRY_MODE, count] = facts[_MODE] & _MODE_MASK
            table[ENTRY_INODE, count] = np.int64(
                np.uint64(facts[_INODE]) | np.uint64(facts[_INODE + 1]) << np.uint64(32)
            )
            table[ENTRY_DEVICE, count] = (
                (major & ~0xFFF) << 32 | (major & 0xFFF) << 8 | (minor & ~0xFF) << 12 | minor & 0xFF
            )
            table[ENTRY_NAMES, count] = facts[_NAMES]
            table[ENTRY_USER, count] = facts[_OWNER]
            table[ENTRY_GROUP, count] = facts[_GROUP]
            table[ENTRY_SIZE, count] = size
            table[ENTRY_MODIFIED, count] = modified
            table[ENTRY_CHANGED, count] = changed
            count += 1
            while entries[name] != 0:
                names[used] = entries[name]
                used += 1
                name += 1
            names[used] = 0
            used += 1


# The C functions of ``delete_files``.
DELETING_FUNCTIONS: Final = ("statx", "fcntl", "unlinkat")


@kernel
def delete_files(
    functions: NDArray[np.int64],
    folder: int,
    names: NDArray[np.uint8],
    name_at: NDArray[np.int64],
    lock: NDArray[np.int64],
    query: NDArray[np.uint8],
    free: NDArray[np.uint8],
    answered: NDArray[np.uint8],
    facts: NDArray[np.uint32],
) -> int:
    """Delete files of an open folder. Before each, ask whether a lock is still ours.

    Args:
        functions: int64[3], addresses of ``DELETING_FUNCTIONS``.
        folder: Its descriptor.
        names: uint8[m], the path of the lock file from there, then the names; a zero byte behind
            each.
        name_at: int64[n], where each name begins.
        lock: int64[6], the locked file: its descriptor, the two halves of its inode, the two
            numbers of its device, and the command that asks who has locked it.
        query: uint8[q], what this command is given.
        free: uint8[f], how the answer begins where nobody else has locked it.
        answered: uint8[q], memory to work with.
        facts: uint32[FACTS_WORDS], memory to work with.

    Returns:
        The number of files deleted; fewer than n where there is another lock file, somebody else
        has locked it, or the system says no.
    """
    text, answer_at = np.int64(names.ctypes.data), np.int64(facts.ctypes.data)
    for number in range(name_at.size):
        answer = call_function(functions[0], folder, text, _NO_LINK, _BASIC_FACTS, answer_at)
        is_ours = (
            answer & _C_INT == 0
            and np.int64(facts[_INODE]) == lock[1]
            and np.int64(facts[_INODE + 1]) == lock[2]
            and np.int64(facts[_MAJOR]) == lock[3]
            and np.int64(facts[_MINOR]) == lock[4]
        )
        if not is_ours:
            return number
        for place in range(query.size):
            answered[place] = query[place]
        answer = call_function(functions[1], lock[0], lock[5], np.int64(answered.ctypes.data), 0, 0)
        if answer & _C_INT != 0:
            return number
        for place in range(free.size):
            if answered[place] != free[place]:
                return number
        answer = call_function(functions[2], folder, text + name_at[number], 0, 0, 0)
        if answer & _C_INT != 0:
            return number
    return name_at.size


# Of partition directories: in columns of one number a file.
FOLDER: Final = 0  # which of the folders it is in
KIND: Final = 1  # which of the known names it has
OFFSET: Final = 2  # the one in its name; 0 in a name without
FILE_COLUMNS: Final = 3
# What is wanted of it: so many bytes at most. With entries these are its last whole ones; an entry
# has one byte, or those of an offset or time index. Without, they begin at a position. Of no bytes
# only the file's facts are wanted.
ENTRY_BYTES: Final = 3
POSITION: Final = 4
MOST_BYTES: Final = 5
# Instead of a position: the one in the last entry, if any, that was last read in its folder.
BY_ENTRY: Final = -1
PART_COLUMNS: Final = 6
# What was found of it.
START: Final = 0  # of its bytes, in the room
LENGTH: Final = 1  # of these; -1 where it has to be opened by those who know every case
SIZE: Final = 2  # of the whole file
USER: Final = 3  # who owns it
MODE: Final = 4
POSITION_READ: Final = 5  # where in the file its bytes begin
FOUND_COLUMNS: Final = 6
# The C functions of `list_folders`.
LISTING_FUNCTIONS: Final = ("openat", "getdents64", "close")
_OFFSET_DIGITS: Final = 20
_ZERO: Final = ord("0")
_MAX_OFFSET: Final = 2**63 - 1
# Of an offset index; an entry ends with a position.
_INDEX_ENTRY_BYTES: Final = OFFSET_INDEX_ENTRY.itemsize
_TIME_ENTRY_BYTES: Final = TIME_INDEX_ENTRY.itemsize
_POSITION_BYTES: Final = OFFSET_INDEX_ENTRY["position"].itemsize


@kernel
def _is_spelled(text: NDArray[np.uint8], at: int, known: NDArray[np.uint8], row: int) -> bool:
    """Whether a text that ends with a zero byte is one row of such texts."""
    for number in range(known.shape[1]):
        if text[at + number] != known[row, number]:
            return False
        if known[row, number] == 0:
            return True
    return False


@kernel
def _read_name(
    text: NDArray[np.uint8], at: int, known: NDArray[np.uint8], numbered: int
) -> tuple[int, int]:
    """Return kind and offset of a name, as ``list_folders`` tells them; kind -1 of any other."""
    for kind in range(numbered, known.shape[0]):
        if _is_spelled(text, at, known, kind):
            return kind, 0
    offset = np.uint64(0)
    for number in range(_OFFSET_DIGITS):
        digit = np.int64(text[at + number]) - _ZERO
        # Of 20 digits the first one is 0: so the others fit in 64 bits, if not always in 63.
        if digit < 0 or digit > (9 if number else 0):
            return -1, 0
        offset = offset * np.uint64(10) + np.uint64(digit)
    if offset > np.uint64(_MAX_OFFSET):
        return -1, 0
    for kind in range(numbered):
        if _is_spelled(text, at + _OFFSET_DIGITS, known, kind):
            return kind, np.int64(offset)
    return -1, 0


@kernel
def list_folders(
    functions: NDArray[np.int64],
    flags: int,
    paths: NDArray[np.uint8],
    path_at: NDArray[np.int64],
    known: NDArray[np.uint8],
    numbered: int,
    entries: NDArray[np.uint8],
    is_listed: NDArray[np.uint8],
    files: NDArray[np.int64],
) -> tuple[int, int]:
    """List folders that have regular files of known names, and nothing else.

    Args:
        functions: int64[3], addresses of ``LISTING_FUNCTIONS``.
        flags: How each folder is opened.
        paths: uint8[m], their paths, a zero byte behind each.
        path_at: int64[n], where each begins.
        known: uint8[k, j], the known names, a zero byte behind each.
        numbered: So many of these have an offset in 20 digits in front.
        entries: uint8[e], memory to work with, aligned for 64-bit numbers.
        is_listed: uint8[n], out: 1 for a folder that was listed, 0 for one to be looked at
            otherwise.
        files: int64[FILE_COLUMNS, capacity], out: their files, those of a folder in any order.

    Returns:
        (folders, count): how many of the folders were looked at, all unless the next one has more
        files than there is room for; and their files.
    """
    path = np.int64(paths.ctypes.data)
    into = np.int64(entries.ctypes.data)
    count = 0
    for folder in range(path_at.size):
        is_listed[folder] = 0
        opened = call_function(functions[0], _NO_FOLDER, path + path_at[folder], flags, 0, 0)
        opened &= _C_INT
        if opened > _MOST_C_INT:
            continue
        first, is_plain, is_full = count, True, False
        used = np.int64(1)
        while used > 0 and is_plain and not is_full:
            used = np.int64(call_function(functions[1], opened, into, entries.size, 0, 0))
            is_plain = used >= 0
            at = np.int64(0)
            while at < used and is_plain and not is_full:
                length = np.int64(entries[at + _ENTRY_LENGTH])
                length |= np.int64(entries[at + _ENTRY_LENGTH + 1]) << 8
                name, entry_kind = at + _ENTRY_NAME, entries[at + _ENTRY_KIND]
                at += length
                if _is_of_itself(entries, name):
                    continue
                kind, offset = _read_name(entries, name, known, numbered)
                is_plain = kind >= 0 and entry_kind == _REGULAR_ENTRY
                is_full = count == files.shape[1]
                if is_plain and not is_full:
                    files[FOLDER, count] = folder
                    files[KIND, count] = kind
                    files[OFFSET, count] = offset
                    count += 1
        call_function(functions[2], opened, 0, 0, 0, 0)
        if is_full and first > 0:
            return folder, first
        if is_plain and not is_full:
            is_listed[folder] = 1
        else:
            count = first
    return path_at.size, count


@kernel
def _end_of_entries(size: int, entry_bytes: int) -> int:
    """Return where the last whole entry of a file ends. A kernel divides by constants only: any
    other number might be 0."""
    if entry_bytes == _INDEX_ENTRY_BYTES:
        return size // _INDEX_ENTRY_BYTES * _INDEX_ENTRY_BYTES
    if entry_bytes == _TIME_ENTRY_BYTES:
        return size // _TIME_ENTRY_BYTES * _TIME_ENTRY_BYTES
    return size


@kernel
def read_parts(
    functions: NDArray[np.int64],
    folder_flags: int,
    file_flags: int,
    paths: NDArray[np.uint8],
    path_at: NDArray[np.int64],
    known: NDArray[np.uint8],
    numbered: int,
    parts: NDArray[np.int64],
    most_of_folder: int,
    name: NDArray[np.uint8],
    facts: NDArray[np.uint32],
    room: NDArray[np.uint8],
    found: NDArray[np.int64],
) -> int:
    """Read parts of files that are regular, and have one name or their folder's owner.

    Args:
        functions: int64[4], addresses of ``FUNCTIONS``.
        folder_flags: How each folder is opened, and file_flags each file.
        paths, path_at, known, numbered: As of ``list_folders``.
        parts: int64[PART_COLUMNS, n]; those of a folder stand side by side.
        most_of_folder: What more is wanted of a folder is not read.
        name: uint8[20 + j], facts: uint32[FACTS_WORDS], memory to work with.
        room: uint8[k], out: what was read.
        found: int64[FOUND_COLUMNS, n], out.

    Returns:
        How much of the room is used.
    """
    path, its_name = np.int64(paths.ctypes.data), np.int64(name.ctypes.data)
    no_name = path + paths.size - 1
    answer_at, into = np.int64(facts.ctypes.data), np.int64(room.ctypes.data)
    used, of_folder = np.int64(0), np.int64(0)
    folder, is_open, owner = np.int64(-1), False, np.int64(0)
    opened, by_entry = np.int64(0), np.int64(0)
    for number in range(parts.shape[1]):
        found[LENGTH, number] = -1
        if parts[FOLDER, number] != folder:
            if is_open:
                call_function(functions[3], opened, 0, 0, 0, 0)
            folder, of_folder, by_entry = parts[FOLDER, number], np.int64(0), np.int64(0)
            opened = _C_INT & call_function(
                functions[0], _NO_FOLDER, path + path_at[folder], folder_flags, 0, 0
            )
            is_open = opened <= _MOST_C_INT
            if is_open:
                answer = call_function(
                    functions[1], opened, no_name, _ITSELF, _BASIC_FACTS, answer_at
                )
                owner = np.int64(facts[_OWNER])
                if answer & _C_INT != 0:
                    call_function(functions[3], opened, 0, 0, 0, 0)
                    is_open = False
        if not is_open:
            continue
        kind, at = parts[KIND, number], 0
        if kind < numbered:
            offset = parts[OFFSET, number]
            for digit in range(_OFFSET_DIGITS - 1, -1, -1):
                name[digit] = _ZERO + offset % 10
                offset //= 10
            at = _OFFSET_DIGITS
        for letter in range(known.shape[1]):
            name[at + letter] = known[kind, letter]
        most = parts[MOST_BYTES, number]
        if most == 0:
            file, base, its_path, way = np.int64(0), opened, its_name, _NO_LINK
        else:
            file = call_function(functions[0], opened, its_name, file_flags, 0, 0) & _C_INT
            base, its_path, way = file, no_name, _ITSELF
            if file > _MOST_C_INT:
                continue
        answer = call_function(functions[1], base, its_path, way, _BASIC_FACTS, answer_at)
        is_read = (
            answer & _C_INT == 0
            and facts[_MODE] & _KIND_MASK == _REGULAR
            and (facts[_NAMES] == 1 or np.int64(facts[_OWNER]) == owner or most == 0)
        )
        if is_read:
            size = np.int64(facts[_SIZE]) | np.int64(facts[_SIZE + 1]) << 32
            entry, position = parts[ENTRY_BYTES, number], parts[POSITION, number]
            if position == BY_ENTRY:
                position = by_entry
            wanted = min(most, max(size - position, 0))
            if entry > 0:
                end = _end_of_entries(size, entry)
                wanted = min(most, end)
                position = end - wanted
            is_read = wanted <= room.size - used and wanted <= most_of_folder - of_folder
            if is_read and wanted > 0:
                is_read = wanted == call_function(
                    functions[2], file, into + used, wanted, position, 0
                )
            if is_read:
                if entry == _INDEX_ENTRY_BYTES and wanted > 0:
                    by_entry = read_u32(room, used + wanted - _POSITION_BYTES)
                found[START, number] = used
                found[POSITION_READ, number] = position
                found[LENGTH, number] = wanted
                found[SIZE, number] = size
                found[USER, number] = facts[_OWNER]
                found[MODE, number] = facts[_MODE] & _MODE_MASK
                used += wanted
                of_folder += wanted
        if most > 0:
            call_function(functions[3], file, 0, 0, 0, 0)
    if is_open:
        call_function(functions[3], opened, 0, 0, 0, 0)
    return used
