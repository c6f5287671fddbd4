"""``python -m tests.planted``: make each mistake in a copy of the tree, and see which test fails.

The likeliest tests are asked first, and all of a size only where these notice nothing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Final

from tests.planted.mistakes import MISTAKES, Mistake

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = ("jobs", "pylog_spark", "storage_core")
# What `make test` has to catch of all, and what both sizes have to.
LEAST_OF_SMALL: Final = 34
SIZES: Final = ("small", "rest")
_COPY: Final = ROOT / "build" / "planted"
# Of pytest's statuses: a test failed; a test file cannot be imported.
_RED: Final = (1, 2)
_NOTHING_CHOSEN: Final = 5
_SECONDS: Final = 3600
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class MistakeError(Exception):
    """The list no longer fits the product."""


def main() -> None:
    """Try the mistakes, and say which tests caught each."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("only", nargs="*", help="words of the mistakes to try; all by default")
    parser.add_argument("--likeliest", action="store_true", help="never run all tests of a size")
    parser.add_argument("--workers", default="2", help="processes that run all tests of a size")
    line = parser.parse_args()
    words = [word.lower() for word in line.only]
    chosen = [
        each
        for each in MISTAKES
        if not words or any(word in f"{each.area} {each.breaks}".lower() for word in words)
    ]
    with copied_tree() as tree:
        caught = dict.fromkeys(SIZES, 0)
        for each in chosen:
            began = time.monotonic()
            size, test = _try(tree, each, line.workers, only_likeliest=line.likeliest)
            seconds = round(time.monotonic() - began)
            if size:
                caught[size] += 1
            _tell(f"{size or 'NOT CAUGHT':10} {seconds:5} s  {each.area}: {each.breaks}  {test}")
    small, everything = caught["small"], sum(caught.values())
    _tell(f"{len(chosen)} mistakes: {small} caught by make test, {everything} by both sizes")
    least = LEAST_OF_SMALL if chosen == list(MISTAKES) else 0
    sys.exit(0 if small >= least and everything == len(chosen) else 1)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read_product(root: Path) -> dict[Path, str]:
    """Return the product's modules below root."""
    files = (path for folder in PRODUCT for path in (root / folder).rglob("*.py"))
    return {path: path.read_text("utf-8") for path in files}


def find_place(modules: Mapping[Path, str], mistake: Mistake) -> Path:
    """Return the one module that has a mistake's text."""
    places = [path for path, text in modules.items() for _ in range(text.count(mistake.text))]
    if len(places) != 1:
        where = ", ".join(map(str, places)) or "nowhere"
        raise MistakeError(f"expected once in the product: {mistake.text!r}; found: {where}")
    return places[0]


@contextmanager
def planted(root: Path, mistake: Mistake) -> Iterator[None]:
    """Have a mistake in the tree below root for the block."""
    modules = read_product(root)
    path = find_place(modules, mistake)
    before = modules[path]
    _write(path, before.replace(mistake.text, mistake.instead))
    try:
        yield
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    # Python compares seconds and sizes, which may be equal.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Check out the tracked files as they are now, with an environment that imports them."""
    shutil.rmtree(_COPY, ignore_errors=True)  # of a run that was killed
    _git("worktree", "prune")
    _git("worktree", "add", "--detach", "--force", str(_COPY), _git("stash", "create") or "HEAD")
    try:
        if (ROOT / ".cache").is_dir():
            (_COPY / ".cache").symlink_to(ROOT / ".cache")
        if (ROOT / "storage_core" / "prebuilt").is_dir():
            shutil.copytree(ROOT / "storage_core" / "prebuilt", _COPY / "storage_core" / "prebuilt")
        _make_environment(_COPY)
        yield _COPY
    finally:
        _git("worktree", "remove", "--force", str(_COPY))


def _make_environment(tree: Path) -> None:
    """Make a virtual environment that has this one's packages, and the product of a tree."""
    own = Path(sys.prefix)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--symlinks", ".venv"], cwd=tree, check=True
    )
    (packages,) = (tree / ".venv").glob("lib/python*/site-packages")
    kept = own / packages.relative_to(tree / ".venv")
    lines = (str(tree), f"import site; site.addsitedir({str(kept)!r})")
    (packages / "tree.pth").write_text("\n".join(lines) + "\n")
    for program in (own / "bin").iterdir():
        copy = tree / ".venv" / "bin" / program.name
        if copy.exists() or not program.is_file():
            continue
        content = program.read_bytes()
        if content.startswith(b"#!"):
            content = content.replace(bytes(own), bytes(tree / ".venv"), 1)
        copy.write_bytes(content)
        copy.chmod(0o755)


def _try(tree: Path, mistake: Mistake, workers: str, *, only_likeliest: bool) -> tuple[str, str]:
    """Return the size that catches a mistake, and its first failing test; empty texts for none."""
    runs = [["-n", "0", *(f"tests/{test}" for test in mistake.tests)]]
    if not only_likeliest:
        runs.append(["-n", workers, "--dist", "loadfile", "--max-worker-restart", "0"])
    for size, arguments in product(SIZES, runs):
        with planted(tree, mistake):
            failed = _run(tree, ["--size", size, *arguments])
        if failed and _run(tree, ["-n", "0", failed]):
            sys.exit(f"{failed} fails without a mistake, too")
        if failed:
            return size, failed
    return "", ""


def _run(tree: Path, arguments: Sequence[str]) -> str:
    """Return the first test that fails, an empty text where all pass."""
    done = subprocess.run(
        [tree / ".venv" / "bin" / "python", "-E", "-m", "pytest", "-x", "-q", *arguments],
        cwd=tree,
        env=os.environ | {"PYLOG_KERNEL_CACHE": str(tree / "build" / "kernels")},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode in {0, _NOTHING_CHOSEN}:
        return ""
    found = _FAILED.search(done.stdout)
    if done.returncode not in _RED or found is None:
        sys.exit(f"pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found[1]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
