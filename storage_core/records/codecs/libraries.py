"""Addresses of the codec libraries' C functions, for calls from kernels. Kernels call them without
Python.

The wheels of lz4 and zstandard hold their library in an extension module, in which its functions
are found as in any shared library; a package that was built upon the system's library leads to
that one. Where a function cannot be found, blocks go one by one through the Python interface.
"""

import ctypes
import importlib.util
from collections.abc import Sequence

from storage_core.kernels._intrinsics import CAN_CALL


def find_library(module: str) -> ctypes.CDLL | None:
    """Load the library in an extension module; None if not callable."""
    spec = importlib.util.find_spec(module)
    if not CAN_CALL or spec is None or spec.origin is None:
        return None
    try:
        return ctypes.CDLL(spec.origin)
    except OSError:
        return None


def addresses_of(library: ctypes.CDLL | None, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the addresses of a library's functions; None if one is missing."""
    try:
        functions = [getattr(library, name) for name in names]
    except AttributeError:
        return None
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
