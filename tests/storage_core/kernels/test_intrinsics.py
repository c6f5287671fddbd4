"""The instruction is chosen by what the CPU has; a wrong choice would abort the process."""

import os
import subprocess
import sys
from pathlib import Path

import crc32c
import numpy as np
import pytest

from storage_core.kernels import _cpu
from storage_core.kernels._compiler import dispatcher_of
from storage_core.kernels._intrinsics import (
    can_fold,
    copy_bytes,
    crc32c_word,
    fold_crc,
    load_word,
    prefetch_row,
)
from tests.storage_core.kernels.arguments import as_array

ROOT = Path(__file__).resolve().parents[3]


def cpu_with(features: dict[str, bool]) -> _cpu.Cpu:
    return _cpu.Cpu(name="any", features=frozenset(name for name in features if features[name]))


X86_64, ARM_64 = "llvm.x86.sse42.crc32.64.64", "llvm.aarch64.crc32cx"


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", {"sse4.2": True}, X86_64),
        ("AMD64", {"sse4.2": True, "avx": False}, X86_64),
        ("x86_64", {"sse4.2": False, "crc": True}, None),
        ("x86_64", {}, None),
        ("aarch64", {"crc": True}, ARM_64),
        ("arm64", {"crc": True}, ARM_64),
        ("arm64", {"neon": True}, None),
        ("riscv64", {"crc": True, "sse4.2": True}, None),
    ],
)
def test_the_instruction_is_one_that_this_cpu_has(monkeypatch, machine, features, expected):
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    monkeypatch.setattr(_cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(_cpu, "host_cpu", lambda: cpu_with(features))
    assert _cpu.crc_instruction() == expected


@pytest.mark.parametrize(
    ("features", "expected"), [("", None), ("+avx,+sse4.2", X86_64), ("+avx,-sse4.2", None)]
)
def test_numba_may_be_told_to_compile_for_another_cpu(monkeypatch, features, expected):
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", features)
    monkeypatch.setattr(_cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(_cpu, "host_cpu", lambda: cpu_with({"sse4.2": True}))
    assert _cpu.crc_instruction() == expected


def test_a_cpu_of_which_only_the_name_is_told_has_no_instruction(monkeypatch):
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    assert _cpu.target_cpu() == _cpu.Cpu(name="generic", features=frozenset())


def test_what_numba_is_told_of_a_cpu_is_that_cpu(monkeypatch):
    cpu = _cpu.Cpu(name="x86-64-v3", features=frozenset({"avx2", "sse4.2"}))
    for name, value in _cpu.told_to_compile_for(cpu).items():
        monkeypatch.setenv(name, value)
    assert _cpu.target_cpu() == cpu


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("linux", "x86_64", "x86-64-v3"),
        ("linux", "aarch64", "generic"),
        ("linux", "riscv64", None),
        ("darwin", "x86_64", None),
    ],
)
def test_code_is_ready_for_common_machines(monkeypatch, system, machine, expected):
    monkeypatch.setattr(_cpu.sys, "platform", system)
    monkeypatch.setattr(_cpu.platform, "machine", lambda: machine)
    cpu = _cpu.common_cpu()
    assert (cpu and cpu.name) == expected


@pytest.mark.thorough
def test_a_cpu_without_the_instruction_uses_the_table(tmp_path):
    program = (
        "import numpy as np\n"
        "from storage_core.kernels import crc32c as module\n"
        "assert module.crc32c is module.crc32c_by_table\n"
        "print(hex(module.crc32c(np.frombuffer(b'123456789', np.uint8), 0, 9)))\n"
    )
    told = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "PYLOG_KERNEL_CACHE": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "0xe3069283\n"


def test_machine_code_folds_where_this_cpu_can():
    asked = dispatcher_of(lambda: can_fold(), inline=False)  # noqa: PLW0108 - no kernel by itself
    is_x86 = _cpu.crc_instruction() == X86_64
    assert asked() == (is_x86 and {"avx512f", "vpclmulqdq"} <= _cpu.host_cpu().features)


def test_code_for_another_kind_of_cpu_folds_by_words():
    by_words = dispatcher_of(fold_crc, inline=False)
    data = np.arange(256, dtype=np.uint8)
    register = by_words(np.uint64(0xFFFFFFFF), data, 0, 256)
    assert int(register) ^ 0xFFFFFFFF == crc32c.crc32c(data.tobytes())


def test_the_plain_twins_do_what_the_instructions_do():
    data = as_array(bytes(range(1, 20)))
    assert load_word(data, 2) == 0x0A09080706050403
    # The register after "12345678", by bytes and by the word.
    register = crc32c_word(0xFFFFFFFF, int.from_bytes(b"12345678", "little"))
    assert register ^ 0xFFFFFFFF == 0x6087809A
    target = np.zeros(6, np.uint8)
    copy_bytes(target, 1, data, 3, 4)
    assert target.tolist() == [0, 4, 5, 6, 7, 0]
    table = np.ones((2, 3), np.uint64)
    prefetch_row(table, 1)
    assert table.tolist() == np.ones((2, 3)).tolist()
