"""The target CPU of machine code. The target is this CPU, another one by numba's settings, or
any. Nothing here imports numba."""

import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from typing import Final

import llvmlite.binding as llvm

_NAME_VARIABLE: Final = "NUMBA_CPU_NAME"
_FEATURES_VARIABLE: Final = "NUMBA_CPU_FEATURES"
_X86: Final = frozenset({"x86_64", "amd64"})
_ARM: Final = frozenset({"aarch64", "arm64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """A CPU as LLVM names it."""

    name: str  # its model, or a level that many models have
    features: frozenset[str]  # the instructions that code for it may have


# What code in a wheel is compiled for. Every server CPU since 2015 has these.
_X86_64_V3: Final = Cpu(
    name="x86-64-v3",
    features=frozenset(
        {
            *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe"),
            *("popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"),
        }
    ),
)
_ARM_64: Final = Cpu(name="generic", features=frozenset({"crc", "fp-armv8", "neon"}))


def common_cpu() -> Cpu | None:
    """Return the CPU of ready-made code for this machine type, or None."""
    if sys.platform != "linux":
        return None
    machine = platform.machine().lower()
    return _X86_64_V3 if machine in _X86 else _ARM_64 if machine in _ARM else None


@cache
def host_cpu() -> Cpu:
    """Return the CPU that this is."""
    present = llvm.get_host_cpu_features()
    return Cpu(
        name=llvm.get_host_cpu_name(),
        features=frozenset(name for name, is_there in present.items() if is_there),
    )


def target_cpu() -> Cpu:
    """Return the CPU that numba compiles for."""
    name, features = os.environ.get(_NAME_VARIABLE), os.environ.get(_FEATURES_VARIABLE)
    if name is None and features is None:
        return host_cpu()
    named = (features or "").split(",")
    return Cpu(
        name=name or host_cpu().name,
        features=frozenset(feature[1:] for feature in named if feature.startswith("+")),
    )


def crc_instruction() -> str | None:
    """Return the LLVM name of the target's 8-byte CRC-32C instruction, or None."""
    machine, features = platform.machine().lower(), target_cpu().features
    if machine in _X86 and "sse4.2" in features:
        return "llvm.x86.sse42.crc32.64.64"
    if machine in _ARM and "crc" in features:
        return "llvm.aarch64.crc32cx"
    return None


def told_to_compile_for(cpu: Cpu) -> dict[str, str]:
    """Return the environment in which numba compiles for a CPU."""
    features = ",".join(f"+{feature}" for feature in sorted(cpu.features))
    return {_NAME_VARIABLE: cpu.name, _FEATURES_VARIABLE: features}
