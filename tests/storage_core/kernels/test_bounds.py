"""All kernel tests once more with bounds checks: compiled code reads out of range in silence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
# They are about processes and caches, not about arrays.
LEFT_OUT = ("test_bounds.py", "test_jit.py", "test_intrinsics.py")


def with_bounds_checks(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"NUMBA_BOUNDSCHECK": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_no_kernel_reads_or_writes_out_of_range():
    done = with_bounds_checks(
        *("-m", "pytest", "--quiet", "--hypothesis-profile=brief", "-p", "no:cacheprovider"),
        *("-k", "not plain", *(f"--ignore={HERE / name}" for name in LEFT_OUT), str(HERE)),
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_the_checks_are_on_in_that_run():
    program = (
        "import numpy as np\n"
        "from storage_core.kernels.survivors import is_set\n"
        "is_set(np.zeros(1, np.uint64), 64)\n"
    )
    assert "IndexError" in with_bounds_checks("-c", program).stderr
