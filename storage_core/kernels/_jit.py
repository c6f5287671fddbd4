"""Kernels: functions over arrays, run as machine code.

The code comes from the user's cache or the wheel (`_code_files`) and is loaded by LLVM (`_native`),
which takes milliseconds. Numba is imported only where there is none for the types of the arguments
(`_compiler`): its import alone takes longer than most commands.
"""

import functools
import hashlib
import importlib
import inspect
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np

from storage_core.kernels._code_files import keep_code, only_here, read_code
from storage_core.kernels._native import check_python, load_entry

_MAX_INT64: Final = 2**63 - 1
# Numba's own switch, for a debugger.
_IS_PLAIN: Final = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
# Here, since in the midst of work it would be the error of one partition, and of the next one.
if not _IS_PLAIN:
    check_python()

_Function = TypeVar("_Function", bound=Callable[..., Any])

_log = logging.getLogger(__name__)
# One thread at a time loads or compiles.
_lock = threading.RLock()


class Kernel:
    """A function with machine code for the types of its arguments. The machine code is loaded,
    or else compiled, when the function is called."""

    def __init__(self, function: Callable[..., Any], *, inline: bool) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._inline = inline
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._entries: dict[str, Callable[..., Any]] = {}
        self._is_loaded = False
        self._without_entry: set[str] = set()
        # Where parameters are named tuples, the last one first.
        self._tuples = [
            place
            for place, name in reversed(list(enumerate(inspect.signature(function).parameters)))
            if _is_tuple(function.__annotations__.get(name))
        ]

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code."""
        flat = self._flat(arguments) if self._tuples else arguments
        for entry in self._entries.values():
            result = entry(*flat)
            if result is not NotImplemented:
                return result
        return self._call_first(arguments)

    @property
    def is_ready(self) -> bool:
        """Whether this process has machine code of the kernel. That is an entry for Python, or a
        signature for other kernels."""
        dispatcher = self.__dict__.get("_dispatcher")
        return bool(self._entries or (dispatcher is not None and dispatcher.signatures))

    @functools.cached_property
    def _dispatcher(self) -> Any:
        from storage_core.kernels._compiler import dispatcher_of  # noqa: PLC0415  # numba

        return dispatcher_of(self.py_func, inline=self._inline)

    @property
    def _numba_type_(self) -> Any:
        """The numba type of this kernel, for calls by another kernel. Numba asks every value
        inside a kernel for this attribute."""
        return self._dispatcher._numba_type_

    def _call_first(self, arguments: tuple[Any, ...]) -> Any:
        """Run the kernel for arguments without an entry. Such a call is the first one, or has other
        types than those before it.

        Raises:
            TypeError: The entry for these types refuses them: numba in its place would hide that.
        """
        plain = tuple(map(_plain, arguments))
        flat = self._flat(plain)
        result = self._try(flat)
        if result is NotImplemented:
            with _lock:
                self._load()
            result = self._try(flat)
        if result is NotImplemented:
            with _lock:
                has_entry = self._compile(plain)
            if not has_entry:
                return self._dispatcher(*plain)
            result = self._try(flat)
        if result is NotImplemented:
            kinds = ", ".join(map(_kind_of, plain))
            raise TypeError(f"{self._name}: its machine code for ({kinds}) refuses these arguments")
        return result

    def _flat(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments as entries take them: of a named tuple its fields."""
        for place in self._tuples:
            arguments = arguments[:place] + arguments[place] + arguments[place + 1 :]
        return arguments

    def _try(self, flat: tuple[Any, ...]) -> Any:
        for entry in self._entries.values():
            result = entry(*flat)
            if result is not NotImplemented:
                return result
        return NotImplemented

    def _load(self) -> None:
        """Take the code that is there."""
        if not self._is_loaded:
            self._add(read_code(self._name))
            self._is_loaded = True

    def _add(self, codes: dict[str, bytes]) -> None:
        new = [name for name in codes if name not in self._entries]
        self._entries = self._entries | {name: load_entry(codes[name], name) for name in new}

    def _compile(self, arguments: tuple[Any, ...]) -> bool:
        """Compile an entry for the types of arguments, unless another process did.

        Returns:
            Whether such types have an entry.
        """
        kinds = ",".join(map(_kind_of, arguments))
        name = f"{self._name}.{hashlib.sha256(kinds.encode()).hexdigest()[:16]}"
        if name in self._without_entry:
            return False
        with only_here(self._name):
            self._add(read_code(self._name))
            if name in self._entries:
                return True
            from storage_core.kernels import _compiler  # noqa: PLC0415  # numba

            _log.debug("compiling %s(%s)", self._name, kinds)
            try:
                code = _compiler.compile_entry(self._dispatcher, arguments, name)
            except _compiler.NoEntryError:
                self._without_entry.add(name)
                return False
            keep_code(self._name, name, code)
        self._add({name: code})
        return True


def _is_tuple(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple)


def _plain(argument: Any) -> Any:
    """Return an argument as one of the few types that entries know."""
    if isinstance(argument, tuple):
        return type(argument)(*map(_plain, argument))
    if isinstance(argument, np.ndarray):
        return np.asarray(argument)  # a map of a file is an array
    if isinstance(argument, bool | np.bool_):
        return bool(argument)
    if isinstance(argument, int | np.signedinteger) or type(argument) in {np.uint8, np.uint32}:
        number = int(argument)
        return number if number <= _MAX_INT64 else np.uint64(number)
    return argument


def _kind_of(argument: Any) -> str:
    """Return a word for an argument's numba type, without importing numba. An entry is compiled
    for arguments of such types."""
    if isinstance(argument, tuple):
        return f"{type(argument).__name__}({','.join(map(_kind_of, argument))})"
    if not isinstance(argument, np.ndarray):
        return type(argument).__name__
    flags = argument.flags
    order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    written = f"{'' if flags.writeable else 'readonly '}{'' if flags.aligned else 'unaligned '}"
    return f"{written}{argument.dtype.str}{argument.ndim}{order}"


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call; cache it on disk. The machine code runs without the
    interpreter lock."""
    return cast("_Function", function if _IS_PLAIN else Kernel(function, inline=False))


def inlined_kernel(function: _Function) -> _Function:
    """Compile a function as `kernel` does, inlined into its callers.

    Such a function is called for every record. LLVM alone leaves calls of functions with several
    results; a record then costs half as much again (``make bench``).
    """
    return cast("_Function", function if _IS_PLAIN else Kernel(function, inline=True))


def kernels_of(module_name: str) -> dict[str, Kernel]:
    """Return the kernels that a module defines, by name (``pylog warmup``)."""
    module = importlib.import_module(module_name)
    return {
        name: value
        for name, value in inspect.getmembers(module)
        if isinstance(value, Kernel) and value.py_func.__module__ == module_name
    }
