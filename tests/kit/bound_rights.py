"""Permissions that bind this process, though it may be root's."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Of linux/capability.h: two words of each set.
_VERSION_3: Final = 0x20080522
_DAC_OVERRIDE: Final = 1 << 1
_DAC_READ_SEARCH: Final = 1 << 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def bound_rights() -> Iterator[None]:
    """Let permission bits bind this thread for the time of a block, as they bind other users."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()

    def call(name: str) -> None:
        if libc[name](ctypes.byref(header), sets):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    call("capget")
    before = sets[0].effective
    sets[0].effective = before & ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    call("capset")
    try:
        yield
    finally:
        sets[0].effective = before
        call("capset")
