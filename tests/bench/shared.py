"""What benches share: their folder, turns by the clock of processors, options, what they print."""

import argparse
import inspect
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "build" / "bench"
# Work, and how much of it is done by a call.
Way = tuple[float, Callable[[], object]]


MEMORY: Final = "memory alone"
# More than any cache of a processor has.
_MEMORY_BYTES: Final = 1 << 28


def memory_way() -> Way:
    """Return the work of taking megabytes from memory and doing next to nothing with them."""
    words = np.ones(_MEMORY_BYTES // 8, np.uint64)
    return words.nbytes / 1e6, lambda: np.add.reduce(words)


def processor_rates(ways: Mapping[str, Way], *, rounds: int) -> dict[str, list[float]]:
    """Return what each way does in a processor second of this process, in turns.

    Args:
        rounds: At least 2; the first one warms up and does not count.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (amount, way) in ways.items():
            before = time.process_time()
            way()
            rates[name].append(amount / (time.process_time() - before))
    return {name: each[1:] for name, each in rates.items()}


def time_program(words: Sequence[str]) -> float:
    """Return how many seconds ``pylog`` takes from its start to its end."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "pylog_spark", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a module returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def show(found: Any) -> Any:
    """Print what was found, of several parts each as it comes; return it, several as a list."""
    if isinstance(found, Iterable):
        return [show(part) for part in found]
    lines = found.lines() if hasattr(found, "lines") else [found.line()]
    print(*lines, sep="\n", flush=True)  # noqa: T201 - the report is what bench is for
    return found


def run_with_options(
    measure: Callable[..., Any], keep: Callable[..., object] | None = None
) -> None:
    """Call a bench with its parameters as options of the command line, and show what it finds.

    Args:
        keep: With ``--keep``, is given what it finds and its options; None if nothing is kept.
    """
    parser = argparse.ArgumentParser(description=inspect.getdoc(measure))
    for name, parameter in inspect.signature(measure).parameters.items():
        option, default = f"--{name.replace('_', '-')}", parameter.default
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(option, nargs="+", type=type(default[0]), default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    if keep is not None:
        parser.add_argument("--keep", action="store_true")
    options = vars(parser.parse_args())
    is_kept = options.pop("keep", False)
    found = show(measure(**options))
    if keep is not None and is_kept:
        keep(found, **options)
