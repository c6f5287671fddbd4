"""The right to commit one partition in one run: one attempt at a time, one result, ever.

Spark may run a task twice, one after the other or at the same time, and a killed attempt says
nothing. So the driver creates one claim file per partition beside the scratch files before it
starts the commits, and each attempt

1. opens it, without creating it, and locks it (the kernel lets go when the attempt dies);
2. finds in it what a former attempt wrote down, finishes what that one left undone, which may be
   nothing, and returns the same result; or
3. writes down its operations and its result before it begins, and each operation when it is done.

The driver ends a run by locking and deleting the claims: it waits for a commit that is under way,
and an attempt that comes later finds no claim and refuses. After that no task of the run changes a
file any more, and Kafka's lock may be given back.

A run whose driver was killed leaves its claims behind. The next run on the directory finishes what
was begun, so that a commit is made once and whole even then, and the bytes are those of a run that
nobody killed.

The file holds one JSON object a line. A crash of the machine may lose lines of it; so the machine's
boot is written down too, and of another boot nothing is believed: what is on disk then is what a
log loader finishes.
"""

import base64
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from storage_core import plan as plans
from storage_core.errors import GuardRefusedError, PylogError, StorageError
from storage_core.plan import Operation, Plan, PromoteFile, RenameFile, commit
from storage_core.store import LocalStore

_OPERATIONS: Final = "operations"
_DONE: Final = "done"
_RESULT: Final = "result"
_LOCATION: Final = "location"
_BOOT: Final = "boot"
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


class CommitClaim:
    """A claim that this attempt holds; made by ``hold_claim``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._result: dict[str, Any] = {}
        self._operations: tuple[Operation, ...] | None = None
        self._done = 0
        self._in_doubt: int | None = None
        self._boot: str | None = None
        self.location: str | None = None
        self._read()

    @property
    def is_begun(self) -> bool:
        """Whether this or a former attempt has written down what it is going to do."""
        return self._operations is not None

    @property
    def is_of_this_boot(self) -> bool:
        """Whether all that was written down is there: the machine did not crash since."""
        return self._boot == current_boot()

    def begin(self, plan: Plan, result: dict[str, Any]) -> None:
        """Write down what is going to be done, before any of it is.

        Args:
            plan: The operations.
            result: What every attempt returns once they are done; plain values.
        """
        self._operations, self._result = plan.operations, result
        steps = [_encode_operation(step) for step in plan.operations]
        self.location, self._boot = plan.location, current_boot()
        self._append(
            {
                _OPERATIONS: steps,
                _RESULT: result,
                _LOCATION: self.location,
                _BOOT: self._boot,
            }
        )

    def finish(self, store: LocalStore) -> dict[str, Any]:
        """Do what is left of what was begun, which may be nothing.

        Returns:
            The result that was written down with it.

        Raises:
            StorageError: The disk failed; what was done until then stays.
        """
        steps = self._operations or ()
        for number in range(self._done, len(steps)):
            step = steps[number]
            if number != self._in_doubt or not _happened(step, store):
                commit(Plan(location=store.location, operations=(step,)), store)
            self._append({_DONE: number + 1})
            self._done = number + 1
        return self._result

    def _append(self, record: dict[str, Any]) -> None:
        left = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        try:
            # One call writes less than was asked for where there is little room, or very much.
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            raise StorageError(str(self._path), error.strerror or str(error)) from error

    def _read(self) -> None:
        content = self._path.read_bytes()
        # The last line of a killed attempt may be cut off: what it says did not happen yet, or
        # is found to have happened.
        whole = content[: content.rfind(b"\n") + 1]
        os.ftruncate(self._descriptor, len(whole))
        for line in whole.splitlines():
            record = json.loads(line)
            if _OPERATIONS in record:
                self._operations = tuple(_decode_operation(step) for step in record[_OPERATIONS])
                self._result = record[_RESULT]
                self._boot, self.location = record.get(_BOOT), record.get(_LOCATION)
            self._done = record.get(_DONE, self._done)
        self._in_doubt = self._done if self.is_begun else None


def create_claim(path: Path) -> None:
    """Allow the commit of one partition; on the driver, before the commits start."""
    path.touch(mode=0o600)


@contextmanager
def hold_claim(path: Path) -> Iterator[CommitClaim]:
    """Hold a claim for the time of the block, waiting for another attempt that holds it.

    Raises:
        GuardRefusedError: The run is over: its driver took the claim away.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _run_is_over(path) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink == 0:
            raise _run_is_over(path)
        yield CommitClaim(path, descriptor)
    finally:
        os.close(descriptor)


def current_boot() -> str | None:
    """Return what names the time since the machine was started, None if nothing does."""
    try:
        return _BOOT_FILE.read_text().strip()
    except OSError:
        return None


def resume_claim(path: Path) -> tuple[str, dict[str, Any]] | None:
    """Finish the commit that a killed run began; under the lock of the log directory.

    Returns:
        (location, result): the partition's and what was written down of it. None where nothing was
        begun, so that the partition is as it was.

    Raises:
        CommitLostError: What was begun is not known, or not wholly.
        StorageError: The disk failed.
    """
    with hold_claim(path) as claim:
        if not claim.is_begun:
            return None
        if not claim.is_of_this_boot or claim.location is None:
            raise CommitLostError(str(path))
        return claim.location, claim.finish(LocalStore(Path(claim.location)))


class CommitLostError(PylogError):
    """The machine crashed during a commit: what was done of it is for a log loader to find out."""

    def __init__(self, claim: str) -> None:
        super().__init__(claim)
        self.claim = claim

    def __str__(self) -> str:
        return f"{self.claim}: the machine was started anew since this commit began"


def revoke_claim(path: Path) -> None:
    """Take a claim away, after waiting for a commit that is under way; on the driver."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _run_is_over(path: Path) -> GuardRefusedError:
    return GuardRefusedError("RUN_IS_OVER", f"{path}: the run of this task has ended")


def _happened(step: Operation, store: LocalStore) -> bool:
    """Whether a step that a killed attempt may have done was done; others may be done again."""
    directory = Path(store.location)
    match step:
        case PromoteFile():
            return not Path(step.scratch_path).exists() and (directory / step.name).exists()
        case RenameFile():
            source, target = directory / step.source, directory / step.target
            return not source.exists() and target.exists()
        case _:
            return False


def _encode_operation(step: Operation) -> dict[str, Any]:
    row: dict[str, Any] = {"operation": type(step).__name__}
    for field in fields(step):
        value = getattr(step, field.name)
        row[field.name] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return row


def _decode_operation(row: dict[str, Any]) -> Operation:
    values = dict(row)
    kind = getattr(plans, values.pop("operation"))
    if "content" in values:
        values["content"] = base64.b64decode(values["content"])
    step: Operation = kind(**values)
    return step
