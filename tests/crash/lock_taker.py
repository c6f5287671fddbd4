"""A process that takes Kafka's lock on a log directory as a broker does, once it can have it.

    python -m tests.crash.lock_taker LOG_DIRECTORY

For each line of input it tries once, and says ``refused`` or ``taken``. Once it has the lock, a
line has it say which files have changed since, as JSON: nobody else may change any.
"""

import fcntl
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

LOCK = ".lock"


def state_of(directory: Path) -> dict[str, list[int]]:
    """Return what any change of a file or folder would change, by path; the lock file apart."""
    state = {}
    for place, folders, files in os.walk(directory):
        for name in [*folders, *files]:
            path = Path(place, name)
            if path == directory / LOCK:
                continue
            with suppress(FileNotFoundError):  # somebody else is at work
                facts = path.lstat()
                state[str(path)] = [
                    facts.st_ino,
                    facts.st_size,
                    facts.st_mtime_ns,
                    facts.st_ctime_ns,
                ]
    return state


def take(directory: Path) -> int | None:
    """Take the lock on the whole file; None where somebody else has it."""
    path = directory / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def main(directory: Path) -> None:
    """Answer line by line."""
    taken = False
    before: dict[str, list[int]] = {}
    for _ in sys.stdin:
        if not taken:
            taken = take(directory) is not None
            answer = "taken" if taken else "refused"
            before = state_of(directory) if taken else {}
        else:
            now = state_of(directory)
            paths = sorted(before.keys() | now.keys())
            answer = json.dumps([path for path in paths if before.get(path) != now.get(path)])
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
