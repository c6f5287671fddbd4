"""``pylog warmup``: every kernel is compiled, and kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pylog_spark.cli import warmup
from storage_core.kernels.crc32c import crc32c
from tests.kit.compare import read_tree
from tests.pylog_spark.cli.warmup_sample import write_sample


def test_the_log_in_the_code_is_what_the_builders_build(tmp_path: Path):
    built = write_sample(tmp_path / "built" / "warmup-0")
    warmup.write_sample(tmp_path / "carried")
    assert read_tree(tmp_path / "carried") == read_tree(built)


def warm_up(cache: Path, *, after: str) -> list[str]:
    """Warm up in a process of its own, where no wheel has code for; return what it prints."""
    imported = "from pylog_spark.cli.warmup import all_kernels, warm_up; "
    code = f"{imported}print(warm_up()); {after}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        # Any setting of numba's that makes other code: a wheel's is not taken then.
        env={**os.environ, "PYLOG_KERNEL_CACHE": str(cache), "NUMBA_OPT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.long
def test_after_a_warm_up_nothing_is_left_to_compile(tmp_path: Path):
    # What is called by other kernels only, numba has compiled for them.
    left = "print(*sorted(n for n, k in all_kernels().items() if not k.is_ready))"
    said, names = warm_up(tmp_path, after=left)
    assert f"kept in {tmp_path}" in said
    # The machine has one of the three ways to compute a CRC.
    ways = {"crc32c_by_table", "crc32c_by_instruction", "crc32c_by_folding"}
    assert names.split() == [f"crc32c.{name}" for name in sorted(ways - {crc32c.py_func.__name__})]
    assert list(tmp_path.rglob("*.bin"))
    # The whole of it once more, and numba is not even imported.
    assert warm_up(tmp_path, after="import sys; print('numba' in sys.modules)")[1] == "False"
