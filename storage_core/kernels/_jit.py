"""How kernels are compiled, and where the machine code is kept.

Numba's own disk cache is keyed by the file that defines a function: it misses an edited callee or
constant in another file, fails to import on a read-only install, and recompiles for every
``--py-files`` zip. The locator here keys the cache by a digest of all sources that a kernel can
depend on (``kernels`` and ``formats``), wherever they were loaded from. The root is the first
folder that can be written of: ``PYLOG_KERNEL_CACHE``, the user's cache folder, a private folder in
the system's temporary folder. Without any, kernels are compiled anew in every process.
"""

import hashlib
import importlib
import inspect
import os
import pkgutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba.core import config as numba_config
from numba.core.caching import _CacheLocator

CACHE_VARIABLE: Final = "PYLOG_KERNEL_CACHE"
_SOURCE_PACKAGES: Final = ("storage_core.formats", "storage_core.kernels")

_Function = TypeVar("_Function", bound=Callable[..., Any])


@cache
def source_digest() -> str:
    """Return a digest of every source that compiled code depends on, bounds checks included."""
    digest = hashlib.sha256(f"{numba.__version__} {numba_config.BOUNDSCHECK}".encode())
    for package_name in _SOURCE_PACKAGES:
        package = importlib.import_module(package_name)
        for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
            source = pkgutil.get_data(package_name, f"{name}.py") or b""
            digest.update(f"{package_name}.{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:24]


def _candidate_roots() -> Iterator[Path]:
    folder = os.environ.get(CACHE_VARIABLE)
    if folder:
        yield Path(folder)
        return
    user_cache = os.environ.get("XDG_CACHE_HOME") or _user_cache()
    if user_cache:
        yield Path(user_cache) / "pylog" / "kernels"
    with suppress(FileNotFoundError):  # there is no temporary folder that can be written
        private = Path(tempfile.gettempdir()) / f"pylog-kernels-{os.getuid()}"
        # Anybody may have made a folder of that name before.
        if _is_usable(private):
            yield private


def _user_cache() -> Path | None:
    with suppress(RuntimeError):  # no home directory is known for this user
        return Path.home() / ".cache"
    return None


def _is_usable(folder: Path) -> bool:
    """Whether folder is ours alone and can be written: it holds code that will be run."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = folder.stat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
            return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@cache
def cache_folder() -> Path | None:
    """Return the folder that holds the compiled kernels, or None where nothing can be written."""
    for root in _candidate_roots():
        folder = root / source_digest()
        if _is_usable(folder):
            return folder
    return None


class DigestLocator(_CacheLocator):
    """Numba's way of asking where a function's machine code is and whether it is still right."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._folder = folder
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        """Return the folder for this function's files."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return what must be equal for a cached file to be used."""
        return source_digest()

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name apart."""
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "DigestLocator | None":
        """Return the locator of a function, or None where nothing can be written."""
        del py_file  # the digest covers it, and a zip has no file
        folder = cache_folder()
        return cls(py_func, folder) if folder else None


def _compile(function: _Function, *, inline: bool) -> _Function:
    saved = numba_config.CACHE_LOCATOR_CLASSES
    numba_config.CACHE_LOCATOR_CLASSES = f"{__name__}.{DigestLocator.__name__}"
    try:
        decorate = numba.njit(
            nogil=True,
            cache=cache_folder() is not None,
            error_model="numpy",
            forceinline=inline,
        )
        compiled = decorate(function)
    finally:
        numba_config.CACHE_LOCATOR_CLASSES = saved
    return cast("_Function", compiled)


def kernel(function: _Function) -> _Function:
    """Compile a function on its first call, without the interpreter lock, cached on disk."""
    return _compile(function, inline=False)


def inlined_kernel(function: _Function) -> _Function:
    """As kernel, for what is called for every record: its callers take its code in.

    LLVM alone leaves calls of functions with several results; a record then costs half as much
    again (``make bench``).
    """
    return _compile(function, inline=True)


def kernels_of(module_name: str) -> dict[str, Any]:
    """Return the compiled functions that a kernel module defines, by name (``pylog warmup``)."""
    module = importlib.import_module(module_name)
    return {
        name: value
        for name, value in inspect.getmembers(module)
        if isinstance(value, numba.core.registry.CPUDispatcher)
        and value.py_func.__module__ == module_name
    }
