"""Machine code as functions of Python: what `_compiler` wrote, loaded without numba.

The first load checks the one function that reads Python's objects (`_binding`), by a kernel that
answers what it was given.
"""

import ctypes
import platform
import re
import struct
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np

from storage_core.errors import UnsupportedPythonError
from storage_core.kernels._binding import (
    ARRAY,
    CALL,
    ECHO,
    KIND_WORDS,
    MOST_DIMENSIONS,
    SIGNED,
    TRUTH,
    UNSIGNED,
    VALUE_WORDS,
    binding_text,
)

_FAST_CALL: Final = 0x80  # METH_FASTCALL
_C_FUNCTION: Final = re.compile(r"^declare .*@(Py\w+)\(", re.MULTILINE)

# In the order that `_binding` has them in. A call answers NotImplemented where arguments are of
# other types than those of the kernel.
_OBJECTS: Final = (
    np.ndarray,
    int,
    np.int64,
    np.uint64,
    True,
    False,
    None,
    NotImplemented,
    IndexError,
)

# What the kernel of the check is called with: an array with gaps, one that is read-only, numbers
# with bits that a wrong sign or width would lose.
_WIDE: Final = np.arange(12, dtype=np.int64).reshape(3, 4)[:, 1:3]
_LOCKED: Final = np.frombuffer(b"pylog", np.uint8)
_NEGATIVE: Final = -(2**62) - 1
_UNSIGNED: Final = np.uint64(2**64 - 2)


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# What functions point to for as long as they live, which is the process.
_held: Final[list[Any]] = []


def load_entry(code: bytes, name: str) -> Any:
    """Return the function that an object file has under this name.

    Raises:
        UnsupportedPythonError: This Python cannot call machine code.
    """
    engine = _checked_engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    signature = engine.get_global_value_address(signature_name(name))
    return _function_of(engine, name, signature)


def signature_name(entry: str) -> str:
    """Return the name of an entry's signature words. The words describe the arguments and
    results of the entry."""
    return f"{entry}.signature"


def signature_words(
    kinds: Sequence[Sequence[int]], signs: Sequence[int], *, is_tuple: bool
) -> list[int]:
    """Return the words that describe a kernel.

    Args:
        kinds: Its arguments; of each a kind of `_binding`, followed by what describes an array.
        signs: Its results, each signed or unsigned.
        is_tuple: Whether Python gets a tuple of them.
    """
    words = [word for kind in kinds for word in (*kind, *[0] * (KIND_WORDS - len(kind)))]
    return list(map(int, (len(kinds), len(signs), is_tuple, *words, *signs)))


def check_python() -> None:
    """Refuse a Python unable to call machine code correctly. The check runs before there is work to
    do.

    Raises:
        UnsupportedPythonError: It is not CPython, has no lock, is of another word size, or its
            objects are read wrongly.
    """
    _checked_engine()


@cache
def _checked_engine() -> Any:
    _check_kind()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True, opt=0)
    kinds = _echo_kinds()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(binding_text(len(kinds))), machine)
    engine.finalize_object()
    signs = [
        UNSIGNED if kind == (UNSIGNED,) else SIGNED for kind in kinds for _ in range(VALUE_WORDS)
    ]
    words = signature_words(kinds, signs, is_tuple=True)
    signature = (ctypes.c_int64 * len(words))(*words)
    _held.append(signature)
    _check_calls(_function_of(engine, ECHO, ctypes.addressof(signature)))
    return engine


def _check_kind() -> None:
    """Refuse an unsupported kind of Python. Calling a missing function would end the process."""
    if sys.implementation.name != "cpython":
        raise _unsupported(f"it is {platform.python_implementation()}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise _unsupported("it is free-threaded, which nobody has tested")
    if struct.calcsize("P") != struct.calcsize("q"):
        raise _unsupported("its pointers have no 64 bits")
    names = _C_FUNCTION.findall(binding_text(0))
    missing = [name for name in names if not hasattr(ctypes.pythonapi, name)]
    if missing:
        raise _unsupported(f"it has no {', '.join(missing)}")


def _echo_kinds() -> list[tuple[int, ...]]:
    return [
        (ARRAY, ord("l"), ord("q"), 2, 0, 0),
        (ARRAY, ord("B"), ord("B"), 1, 1, 1),
        (SIGNED,),
        (UNSIGNED,),
        (TRUTH,),
    ]


def _check_calls(echo: Any) -> None:
    """Compare a kernel's view of arguments with Python's."""
    arguments = (_WIDE, _LOCKED, _NEGATIVE, _UNSIGNED, True)
    expected = {
        "address": (0, _WIDE.ctypes.data),
        "length": (1, 3),
        "columns": (2, 2),
        "stride": (1 + MOST_DIMENSIONS, 32),
        "column stride": (2 + MOST_DIMENSIONS, 8),
        "read-only address": (VALUE_WORDS, _LOCKED.ctypes.data),
        "read-only length": (VALUE_WORDS + 1, 5),
        "int": (2 * VALUE_WORDS, _NEGATIVE),
        "unsigned number": (3 * VALUE_WORDS, int(_UNSIGNED)),
        "truth": (4 * VALUE_WORDS, 1),
    }
    for number in (_NEGATIVE, np.int64(_NEGATIVE)):
        answer = echo(_WIDE, _LOCKED, number, _UNSIGNED, True)
        if not isinstance(answer, tuple):
            raise _unsupported(f"a call of machine code answered {answer!r}, expected numbers")
        for name, (place, value) in expected.items():
            if answer[place] != value:
                raise _unsupported(
                    f"machine code reads {answer[place]} as the {name} of an argument, "
                    f"expected {value}"
                )
    for place, wrong in enumerate((_WIDE.view(np.float64), _WIDE, None, 1, 1)):
        others = [*arguments[:place], wrong, *arguments[place + 1 :]]
        if echo(*others) is not NotImplemented:
            raise _unsupported(f"machine code takes a wrong argument {place} for a right one")


def _unsupported(reason: str) -> UnsupportedPythonError:
    return UnsupportedPythonError(f"{sys.version.split()[0]} ({sys.executable})", reason)


def _function_of(engine: Any, name: str, signature: int) -> Any:
    """Return the function by which Python calls a kernel."""
    addresses = [engine.get_function_address(name), signature, *map(id, _OBJECTS)]
    closure = (ctypes.c_void_p * len(addresses))(*addresses)
    method = _Method(name.encode(), engine.get_function_address(CALL), _FAST_CALL, None)
    _held.extend((closure, method))
    return _new_function()(method, _new_capsule()(ctypes.addressof(closure), None, None), None)


@cache
def _new_function() -> Any:
    kind = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p
    )
    return kind(("PyCFunction_NewEx", ctypes.pythonapi))


@cache
def _new_capsule() -> Any:
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return kind(("PyCapsule_New", ctypes.pythonapi))
