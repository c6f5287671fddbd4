"""``python -m tests.kit.prebuilt_kernels``: machine code for the wheel, beside the sources.

Compiled for what most machines of this kind have, not for this one. A checkout takes it, too. Code
for aarch64 is made beside that for x86-64 by the Python of `aarch64_python`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import storage_core
from storage_core.kernels._code_files import CACHE_VARIABLE, layer_name, source_digest
from storage_core.kernels._cpu import common_cpu, host_cpu, told_to_compile_for

# Of ``pylog warmup`` the part that compiles: Spark's classes are of no use to a wheel.
WARM_UP: Final = "from pylog_spark.cli.warmup import warm_up; print(warm_up())"
_PACKAGE: Final = Path(storage_core.__file__).parent


def main() -> None:
    """Compile all kernels, unless that is done or this machine cannot run what it would compile."""
    cpu, layer = common_cpu(), _PACKAGE / layer_name()
    if layer.exists() or cpu is None or cpu.features - host_cpu().features:
        return
    with tempfile.TemporaryDirectory(prefix="pylog-kernels-") as folder:
        subprocess.run(
            [sys.executable, "-c", WARM_UP],
            env=os.environ | told_to_compile_for(cpu) | {CACHE_VARIABLE: folder},
            check=True,
        )
        layer.parent.mkdir(exist_ok=True)
        _remove_others(layer)
        unfinished = layer.with_name("unfinished")
        unfinished.mkdir()
        for file in Path(folder).rglob("*.bin"):
            (unfinished / file.name).write_bytes(file.read_bytes())
        unfinished.rename(layer)


def _remove_others(layer: Path) -> None:
    """Remove code of former sources, of no use to anybody; these, for other CPUs, stay."""
    for folder in layer.parent.iterdir():
        if not folder.name.startswith(f"{source_digest()}-"):
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
