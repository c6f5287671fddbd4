"""The claim file: the right to commit a partition in one run. Only one attempt works at a time, and
all of them return the same result.

Spark may run a task twice, one after the other or at the same time, and a killed attempt says
nothing. So the driver creates one claim file per partition beside the scratch files before it
starts the commits, and each attempt

1. opens it, without creating it, and locks it (the kernel lets go when the attempt dies);
2. finds in it what a former attempt wrote down, finishes what that one left undone, which may be
   nothing, and returns the same result; or
3. writes down its operations and its result before it begins, and operations when they are done: a
   line for as many as can be told from each other by the files that they leave.

The driver ends a run by locking and deleting the claims: it waits for a commit that is under way,
and an attempt that comes later finds no claim and refuses. After that no task of the run changes a
file any more, and Kafka's lock may be given back.

A run whose driver was killed leaves its claims behind. The next run on the directory finishes what
was begun, so that a commit is made once and whole even then, and the bytes are those of a run that
nobody killed; unless somebody has worked on the partition since, a broker or a person. So the
version of every file is written down too, and of what steps have changed once they are done: a
claim is believed only while the partition is, file by file, what its own steps have made of it.

The file holds one JSON object a line. A crash of the machine may lose lines of it; so the machine's
boot is written down too, and of another boot nothing is believed: what is on disk then is what a
log loader finishes.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final

from storage_core.commit.executor import apply_steps
from storage_core.commit.plan import (
    CommitPlan,
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    DeleteFiles,
    FileVersion,
    KeepFile,
    Operation,
    PromoteFile,
    RecordLeft,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    Versions,
    WriteFile,
    WriteRecord,
    changed_names,
    follow_step,
    independent_groups,
    met_names,
    observe_versions,
    version_of,
    versions_of,
)
from storage_core.commit.rehearsal import verify_fit
from storage_core.commit.trash import find_run_folder, hold_run_again
from storage_core.errors import (
    ChangedWhileReadError,
    GuardRefusedError,
    ManifestError,
    PylogError,
    StorageError,
)
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, SCRATCH_PREFIX
from storage_core.json_values import (
    COMPACT_LINE,
    OMITTED,
    Count,
    FileName,
    JsonFile,
    SystemText,
    Word,
    field_values,
    parse_object,
    read_part,
)
from storage_core.local_files import PRIVATE_FILE_MODE, open_file, write_all
from storage_core.store import LocalStore
from storage_core.store.folder_entries import FolderEntries
from storage_core.store.local import plain_path, storage_errors
from storage_core.threads import waiting

# Encode a commit's operations in a claim; refuse those not ours.
#
# A claim lies where its run could write, and the run that finishes it may be root's. So nothing in
# it is taken on trust: a step is of a kind that commits have, its files are plain names of one
# partition directory of the log directory that is being worked on, and what it takes in or keeps
# lies where runs put that. None of these is a link: no run makes one.

_KINDS: Final[tuple[type[Operation], ...]] = (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    DeleteFiles,
    KeepFile,
    PromoteFile,
    RecordLeft,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
    WriteRecord,
)
_KIND: Final = "operation"


def encode_step(step: Operation) -> dict[str, Any]:
    """Return an operation as values that a claim has."""
    return {_KIND: type(step).__name__, **field_values(step)}


def decode_step(row: Mapping[str, Any], *, file: str, where: str) -> Operation:
    """Return the operation that ``encode_step`` encoded."""
    kinds = [kind for kind in _KINDS if kind.__name__ == row.get(_KIND)]
    if not kinds:
        raise ManifestError(file, f"{where}.{_KIND}", "expected an operation of a commit")
    values = {name: value for name, value in row.items() if name != _KIND}
    step: Operation = read_part(kinds[0], values, file=file, where=where)
    return step


def require_places(
    steps: Iterable[Operation], location: str, *, claim: Path, log_directory: Path
) -> None:
    """Check that steps stay within a run's places on one log directory.

    Args:
        location: Path of the partition directory that it says it worked on.
        log_directory: The directory whose lock is held.
    """
    directory = Path(location)
    with storage_errors(directory):
        is_inside = directory.name not in {"", ".."} and directory.parent.samefile(log_directory)
        is_itself = is_inside and stat.S_ISDIR(directory.lstat().st_mode)
    if not is_itself:
        what = "a link, or no directory" if is_inside else location
        raise ManifestError(
            str(claim), "location", f"expected a directory in {log_directory}, found {what}"
        )
    for step in steps:
        for name in met_names(step):
            if not _is_file_or_free(directory / name):
                raise ManifestError(
                    str(claim), type(step).__name__, f"{name} is a link or a folder, and no file"
                )
        match step:
            case PromoteFile(scratch_path=path):
                is_ours = _is_scratch(Path(path), claim, directory)
            case KeepFile(path=path) | WriteRecord(path=path) | RecordLeft(path=path):
                is_known = find_run_folder(Path(path), directory) is not None
                is_ours = is_known and not _is_linked(Path(path), directory)
            case _:
                continue
        if not is_ours:
            raise ManifestError(
                str(claim), type(step).__name__, f"expected a place of a run, found {path}"
            )


def trash_of(steps: Iterable[Operation], location: str) -> list[Path]:
    """Return the distinct run folders in the trash used by steps. Steps keep files in them, or
    write records.

    Args:
        steps: Steps of one commit, accepted by ``require_places``.
    """
    places = (
        find_run_folder(Path(step.path), Path(location))
        for step in steps
        if isinstance(step, KeepFile | WriteRecord | RecordLeft)
    )
    return sorted({place for place in places if place is not None})


def _is_file_or_free(path: Path, *, most_names: int | None = None) -> bool:
    """Tell whether a path is a regular file or free; no link.

    Args:
        most_names: How many names the file may have, None for any number.
    """
    with storage_errors(path):
        try:
            facts = path.lstat()
        except FileNotFoundError:
            return True
    return stat.S_ISREG(facts.st_mode) and (most_names is None or facts.st_nlink <= most_names)


def _is_scratch(path: Path, claim: Path, directory: Path) -> bool:
    """Tell whether a path is a scratch file of the claim's run."""
    if not path.name.startswith(SCRATCH_PREFIX):
        return False
    with storage_errors(path.parent):
        # The killed run may have known the log directory by another name.
        is_inside = path.parent == directory or path.parent.samefile(claim.parent)
    # The trash gives files of a partition second names; a scratch file has only one.
    return is_inside and _is_file_or_free(path, most_names=1)


def _is_linked(path: Path, directory: Path) -> bool:
    """Tell whether a link is among a run's own trash folders. The run makes these folders for the
    files of a partition. Those above are the operator's, and may be links."""
    depth = len(plain_path(directory).parts) + 1
    with storage_errors(path):
        return any(folder.is_symlink() for folder in path.parents[:depth])


_OPERATIONS: Final = "operations"
_DONE: Final = "done"
# Beginning of the name of a claim that its run gave up after its commit had begun.
_ASIDE: Final = f"{SCRATCH_PREFIX}aside-"
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
# The small files that commits write travel in it; indexes do not.
_MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """The first line of a claim: the operations about to be done."""

    operations: tuple[Mapping[str, Any], ...]  # results of ``encode_step``
    result: dict[str, Any]  # the result of every attempt once they are done
    location: SystemText
    boot: Word | None  # the id of the machine's boot, None if it has none
    # Versions of the directory's files, by name; older versions did not say.
    files: Annotated[Versions | None, OMITTED] = None
    scratch: Annotated[Versions | None, OMITTED] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """The line of a claim that says what is done."""

    done: Count
    # Versions of the files that the last of them changed; older versions did not say.
    files: Annotated[Versions | None, OMITTED] = None
    gone: Annotated[tuple[FileName, ...] | None, OMITTED] = None


_BEGUN_LINE: Final = JsonFile(_Begun, layout=COMPACT_LINE, is_open=True)
_DONE_LINE: Final = JsonFile(_Done, layout=COMPACT_LINE, is_open=True)


class CommitClaim:
    """A claim that this attempt holds; made by ``hold_claim``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._result: dict[str, Any] = {}
        self._operations: tuple[Operation, ...] | None = None
        self._done = 0
        self._in_doubt: int | None = None
        self._whole_bytes: int | None = None
        self._boot: str | None = None
        self._files: dict[str, FileVersion] | None = None
        self._scratch: dict[str, FileVersion] = {}
        self.location: str | None = None
        self._read()

    @property
    def is_begun(self) -> bool:
        """Whether the claim lists its operations, from this or a former attempt."""
        return self._operations is not None

    @property
    def steps(self) -> tuple[Operation, ...]:
        """What is done, or going to be; nothing before it is begun."""
        return self._operations or ()

    @property
    def steps_left(self) -> tuple[Operation, ...]:
        """Those of the steps that are not known to be done."""
        return self.steps[self._done :]

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not restarted since the claim began. Within one boot no line
        of the claim file is lost."""
        return self._boot is not None and self._boot == current_boot()

    @property
    def is_of_this_user(self) -> bool:
        """Whether nobody else can have written it, unless root."""
        with storage_errors(self._path):
            facts = os.fstat(self._descriptor)
        return stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1 and facts.st_uid == os.geteuid()

    def begin(
        self, plan: CommitPlan, result: dict[str, Any], *, entries: FolderEntries | None = None
    ) -> None:
        """Write down the operations, before the first of them is done.

        Args:
            result: The result of every attempt once they are done; plain values.
            entries: The directory as the plan was made for it; None to list it now.
        """
        self._operations, self._result = plan.operations, result
        self.location, self._boot = plan.location, current_boot()
        self._files = (
            observe_versions(Path(plan.location)) if entries is None else versions_of(entries)
        )
        self._scratch = _scratch_versions(plan.operations)
        begun = _Begun(
            operations=tuple(map(encode_step, plan.operations)),
            result=result,
            location=self.location,
            boot=self._boot,
            files=self._files,
            scratch=self._scratch,
        )
        self._append(_BEGUN_LINE.encode(begun))

    def verify_fit(self) -> None:
        """Check that the files are unchanged and every step is possible."""
        if self.location is None or self._files is None:
            raise ChangedWhileReadError(
                str(self._path), "the versions of the partition's files", "none: an older version"
            )
        verify_fit(
            Path(self.location), self.steps_left, expected=self._files, scratch=self._scratch
        )

    def finish(self, store: LocalStore) -> dict[str, Any]:
        """Do what is left of what was begun, which may be nothing.

        Returns:
            The result that was written down with it.
        """
        groups = list(independent_groups(self.steps_left))
        remaining = groups.copy()
        if groups and self._done == self._in_doubt:
            with storage_errors(self._path):
                # A step whose source is gone cannot be done again.
                remaining[0] = tuple(step for step in groups[0] if not _happened(step, store))
        applied = apply_steps(chain.from_iterable(remaining), store)
        for group, steps in zip(groups, remaining, strict=True):
            for _ in islice(applied, len(steps)):
                pass
            done = self._done + len(group)
            self._append(_DONE_LINE.encode(self._note(group, done)))
            self._done = done
        return self._result

    def _note(self, group: Iterable[Operation], done: int) -> _Done:
        """Return a line with the file versions after finished steps. The line has only the names
        that the steps changed."""
        if self._files is None or self.location is None:
            return _Done(done=done)  # begun by an older version
        version_of_step = partial(_made, self.location)
        for step in group:
            follow_step(step, self._files, version_of_step)
        names = {name for step in group for name in changed_names(step)}
        there = {name: self._files[name] for name in sorted(names & self._files.keys())}
        return _Done(done=done, files=there, gone=tuple(sorted(names - there.keys())))

    def _append(self, line: bytes) -> None:
        with storage_errors(self._path):
            if self._whole_bytes is not None:
                os.ftruncate(self._descriptor, self._whole_bytes)
                self._whole_bytes = None
            write_all(self._descriptor, line)

    def _read(self) -> None:
        content = self._content()
        # The last line of a killed attempt may be cut off: its steps did not happen yet, or are
        # recognised as done. Writing the next line removes it; a mere look changes nothing.
        whole = content[: content.rfind(b"\n") + 1]
        self._whole_bytes = None if whole == content else len(whole)
        for line in whole.splitlines():
            file = str(self._path)
            values = parse_object(line, file)
            if _OPERATIONS in values:
                self._take_begun(_BEGUN_LINE.read(values, file))
            if _DONE in values:
                self._take_done(_DONE_LINE.read(values, file))
        self._in_doubt = self._done if self.is_begun else None

    def _take_begun(self, line: _Begun) -> None:
        self._operations = tuple(
            decode_step(row, file=str(self._path), where=f"{_OPERATIONS}[{number}]")
            for number, row in enumerate(line.operations)
        )
        self._result, self._boot, self.location = line.result, line.boot, line.location
        self._files = None if line.files is None else dict(line.files)
        self._scratch = dict(line.scratch or {})

    def _take_done(self, line: _Done) -> None:
        if line.done > len(self.steps):
            reason = f"expected a whole number from 0 to {len(self.steps)}, found {line.done}"
            raise ManifestError(str(self._path), _DONE, reason)
        self._done = line.done
        if self._files is None or line.files is None:
            self._files = None
            return
        for name in line.gone or ():
            self._files.pop(name, None)
        self._files |= line.files

    def _content(self) -> bytes:
        """Return the content of the held file, whatever its path names now."""
        with storage_errors(self._path):
            size = os.fstat(self._descriptor).st_size
            if size > _MOST_BYTES:
                raise StorageError(
                    str(self._path), f"has {size} bytes, more than the {_MOST_BYTES} it may have"
                )
            parts = []
            position = 0
            while part := os.pread(self._descriptor, size - position, position):
                parts.append(part)
                position += len(part)
        return b"".join(parts)


def create_claim(path: Path) -> None:
    """Allow the commit of one partition: on the driver, before commits start."""
    with storage_errors(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE))


@contextmanager
def hold_claim(path: Path) -> Iterator[CommitClaim]:
    """Hold a claim for the block; wait while another attempt holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _run_is_over(path) from None
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise StorageError(str(path), why) from error
    try:
        with storage_errors(path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with waiting():
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            has_its_name = _has_its_name(descriptor, path)
        if not has_its_name:
            raise _run_is_over(path)
        yield CommitClaim(path, descriptor)
    finally:
        os.close(descriptor)


def current_boot() -> str | None:
    """Return the id of the machine's current boot, None if unknown."""
    return _read_boot(_BOOT_FILE)


@cache  # no process outlives a boot
def _read_boot(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


def resume_claim(
    path: Path, *, log_directory: Path, fence: Callable[[], None] | None = None
) -> tuple[str, dict[str, Any]] | None:
    """Finish a killed run's commit, or forbid it if not yet begun. A task of that run may outlive
    its driver, and open the claim only now.

    What another user has written is not done with the rights of this one: a claim may lie in a
    folder of the broker's user, who could name there what this user may change and they may not.

    Args:
        log_directory: Where the partition is; its lock is held.
        fence: Asked right before each change whether that is still so.

    Returns:
        (location, result) of the partition; None where the commit had not begun.
    """
    with hold_claim(path) as claim:
        if not claim.is_begun:
            with storage_errors(path):
                path.unlink(missing_ok=True)
            return None
        if not claim.is_of_this_user:
            raise GuardRefusedError("CLAIM_OF_ANOTHER_USER", f"{path}: somebody else has made it")
        if not claim.is_of_this_boot or claim.location is None:
            raise CommitLostError(str(path), "the machine was started anew")
        with storage_errors(log_directory):
            if (log_directory / CLEAN_SHUTDOWN_FILE).exists():
                # Every run removes the marker before its first claim.
                raise CommitLostError(str(path), "a broker has shut down cleanly")
        require_places(claim.steps, claim.location, claim=path, log_directory=log_directory)
        with ExitStack() as held:
            for folder in trash_of(claim.steps_left, claim.location):
                held.enter_context(hold_run_again(folder))
            try:
                claim.verify_fit()
            except ChangedWhileReadError as error:
                raise CommitLostError(
                    str(path),
                    f"{claim.location}: {error.file} has been changed by somebody else (expected "
                    f"{error.expected}, found {error.actual})",
                ) from error
            store = LocalStore(Path(claim.location), fence=fence)
            return claim.location, claim.finish(store)


class CommitLostError(PylogError):
    """A killed commit cannot be finished: its files may have changed. A log loader repairs the
    partition, or has done so."""

    template = "{claim}: {event} since this commit began"

    claim: str
    event: str


def revoke_claim(path: Path) -> None:
    """Remove a claim on the driver, after waiting for its commit."""
    with storage_errors(path):
        try:
            descriptor = open_file(path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def set_aside_claim(path: Path) -> None:
    """Forbid further commits; keep a started one for the next run.

    For a directory that cannot be put in order now: its disk failed. Waits for a commit that is
    under way.
    """
    try:
        with hold_claim(path) as claim, storage_errors(path):
            if claim.is_begun:
                path.rename(path.with_name(_ASIDE + path.name))
            else:
                path.unlink(missing_ok=True)
    except GuardRefusedError:
        return  # it was already removed


def _made(location: str, step: Operation) -> FileVersion:
    (name,) = changed_names(step)
    path = os.path.join(location, name)  # noqa: PTH118  # a ``Path`` takes as long as the call
    with storage_errors(path):
        return FileVersion.of(os.lstat(path))


def _scratch_versions(steps: Iterable[Operation]) -> dict[str, FileVersion]:
    """Return the versions of the scratch files to promote, by path."""
    paths = (step.scratch_path for step in steps if isinstance(step, PromoteFile))
    versions = {path: version_of(Path(path)) for path in paths}
    return {path: version for path, version in versions.items() if version is not None}


def _has_its_name(descriptor: int, path: Path) -> bool:
    """Whether a file that was opened by a name has it still."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _run_is_over(path: Path) -> GuardRefusedError:
    return GuardRefusedError("RUN_IS_OVER", f"{path}: the run of this task has ended")


def _happened(step: Operation, store: LocalStore) -> bool:
    """Tell whether a step, unsafe to repeat, was done before a kill."""
    directory = Path(store.location)
    match step:
        case PromoteFile():
            return not Path(step.scratch_path).exists() and (directory / step.name).exists()
        case RenameFile():
            source, target = directory / step.source, directory / step.target
            return not source.exists() and target.exists()
        case _:
            return False
