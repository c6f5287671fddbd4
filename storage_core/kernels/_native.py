"""Machine code as functions of Python: what `_compiler` wrote, loaded without numba."""

import ctypes
import enum
from functools import cache
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np

_FAST_CALL: Final = 0x80  # METH_FASTCALL


class Fact(enum.IntEnum):
    """What an entry finds in the tuple that it is called with as self."""

    ARRAY = 0
    INT = enum.auto()
    INT64 = enum.auto()
    UINT64 = enum.auto()
    BOOL = enum.auto()
    TRUE = enum.auto()
    NONE = enum.auto()
    MISMATCH = enum.auto()
    INDEX_ERROR = enum.auto()


# In the order of Fact. An entry answers MISMATCH where arguments are of other types.
FACTS: Final = (np.ndarray, int, np.int64, np.uint64, bool, True, None, NotImplemented, IndexError)


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))
# A function points to its description for as long as it lives, which is the process.
_methods: Final[list[_Method]] = []


@cache
def _engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def load_entry(code: bytes, name: str) -> Any:
    """Return the function that an object file has under this name."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    method = _Method(name.encode(), engine.get_function_address(name), _FAST_CALL, None)
    _methods.append(method)
    return _new_function(method, FACTS, None)
