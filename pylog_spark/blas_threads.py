"""Threads of NumPy's linear algebra, of which nothing here makes use.

OpenBLAS starts one for each processor but one while NumPy is imported, and each looks for work for
some hundredths of a second before it sleeps: on two processors that was a quarter of the CPU time
of a short command. It reads the environment, at that moment only.
"""

import os
from typing import Final

# As many threads of OpenBLAS as a process has, its own included.
BLAS_THREADS_VARIABLE: Final = "OPENBLAS_NUM_THREADS"


def start_no_blas_threads() -> None:
    """Let this process and its children start no BLAS threads. Settings of the user stay."""
    os.environ.setdefault(BLAS_THREADS_VARIABLE, "1")
