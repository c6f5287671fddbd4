"""What every Python task does beside its work."""

import gc
import sys

_frozen_modules = 0


def freeze_modules() -> None:
    """Keep the garbage collector out of all that is imported by now.

    After every task Spark's workers collect garbage, and to look through what NumPy, Numba and
    PyArrow have made at their import takes them 100 ms: longer than most tasks.
    """
    global _frozen_modules  # noqa: PLW0603 - of the process, as what it counts
    if len(sys.modules) != _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)
