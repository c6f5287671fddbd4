"""A kernel twice: as it is compiled, and as Python itself runs the same source.

The plain twin reaches all the way down: the kernels that it calls are plain as well. So a read out
of range, which compiled code does in silence, is an IndexError there, and a number that fits only
because it was compiled to 64 bits is seen.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def in_both_ways(**kernels: Any) -> pytest.MarkDecorator:
    """Run a test with compiled kernels as these arguments, and once more with plain ones."""
    return pytest.mark.parametrize(
        tuple(kernels),
        [
            pytest.param(*kernels.values(), id="compiled"),
            pytest.param(*(plainly(kernel) for kernel in kernels.values()), id="plain"),
        ],
    )


def plainly(kernel: Any) -> Callable[..., Any]:
    """Return a kernel as Python runs it, its unsigned numbers wrapping as in compiled code."""
    plain = _plain_copy(kernel)

    @functools.wraps(plain)
    def run(*args: Any) -> Any:
        with np.errstate(over="ignore"):
            return plain(*args)

    return run


@functools.cache
def _plain_copy(kernel: Any) -> types.FunctionType:
    source = kernel.py_func
    names = inspect.getclosurevars(source).globals
    called = {
        name: _plain_copy(value) for name, value in names.items() if hasattr(value, "py_func")
    }
    return types.FunctionType(
        source.__code__, source.__globals__ | called, source.__name__, source.__defaults__
    )
