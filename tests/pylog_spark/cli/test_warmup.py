"""``pylog warmup``: every kernel is compiled, and kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pylog_spark.cli import warmup_log
from storage_core.kernels.crc32c import crc32c
from tests.kit.compare import read_tree
from tests.pylog_spark.cli.warmup_sample import write_sample


def test_the_log_in_the_code_is_what_the_builders_build(tmp_path: Path):
    built = write_sample(tmp_path / "built" / "warmup-0")
    warmup_log.write_sample(tmp_path / "carried")
    assert read_tree(tmp_path / "carried") == read_tree(built)


@pytest.mark.parametrize("where", ["fresh cache"])
def test_after_a_warm_up_no_kernel_is_left_to_compile(tmp_path: Path, where: str):
    code = (
        "from pylog_spark.cli.warmup import all_kernels, warm_up; print(warm_up()); "
        "print(*sorted(n for n, k in all_kernels().items() if not k.signatures))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYLOG_KERNEL_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    said, left = done.stdout.splitlines()
    assert f"kept in {tmp_path}" in said
    # The machine has one of the two ways to compute a CRC.
    other = {"crc32c_by_table", "crc32c_by_instruction"} - {crc32c.py_func.__name__}
    assert left.split() == [f"crc32c.{name}" for name in other]
    assert list(tmp_path.rglob("*.nbi"))
