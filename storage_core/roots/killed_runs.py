"""Finish or drop the commits of killed runs in a log directory.

The next run on the directory does it. A commit that the killed run had begun is finished from its
claim and counts as done: its cleaner point goes into the checkpoint. The killed run also took the
marker of a clean shutdown away. It is put back if every partition is then as it was, or done, and
nobody else has changed one since: then nothing has to be recovered.

A broker may have been there without a sign in the log directory itself, and somebody may have
recovered a partition by hand. So a run writes down what every partition looks like when it takes
the marker.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from storage_core.catalog.log_directories import DirectoryKind
from storage_core.checkpoint.broker_files import UNKNOWN_BROKER_EPOCH, CleanShutdown
from storage_core.commit.claim import current_boot, resume_claim, revoke_claim
from storage_core.commit.plan import digest_versions
from storage_core.commit.scratch import (
    claim_path,
    find_claims,
    find_remembered_markers,
    scratch_home,
)
from storage_core.errors import InvalidNameError, ManifestError, PylogError, StorageError
from storage_core.filenames import (
    MAX_OFFSET,
    TopicPartition,
    directory_state,
    parse_partition_directory,
)
from storage_core.json_values import ONE_LINE, JsonFile, Word, whole
from storage_core.local_files import facts_of, open_folder, read_small, scan_folder
from storage_core.store.folder_entries import FolderEntries
from storage_core.store.local import storage_errors, sync_folder

_log: Final = logging.getLogger(__name__)
# A line for each partition.
_MOST_BYTES: Final = 64 << 20
# A broker loads what a link leads to; no run of ours looks there, so nobody knows what it is.
_LINK: Final = "link"
# One that is not ours to open, or was taken away at this moment: nobody knows what it is, either.
_UNSEEN: Final = "unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What became of the work of killed runs."""

    # Where the next round begins in partitions whose compaction was finished.
    points: Mapping[TopicPartition, int] = field(default_factory=dict)
    # The marker that the directory had and may have again, None for none.
    marker: CleanShutdown | None = None


def resume_killed_runs(
    log_directory: Path,
    *,
    inside: Iterable[Path] | None = None,
    fence: Callable[[], None] | None = None,
) -> Resumed:
    """Finish what killed runs began in a log directory. Its lock is held, and nothing has been
    swept yet.

    Args:
        inside: What ``find_inside`` says of it; None to ask it.
        fence: Asked right before each change whether the lock is still held.
    """
    points: dict[TopicPartition, int] = {}
    finished_here: set[str] = set()
    is_known = True
    for path in find_claims(log_directory, inside=inside):
        try:
            finished = resume_claim(path, log_directory=log_directory, fence=fence)
        except PylogError as error:
            if fence is not None:
                fence()
            _log.warning("%s: a commit of a killed run is left to recovery: %s", path, error)
            is_known = False
            _drop(path, log_directory)
            continue
        if finished is None:
            continue
        location, result = finished
        finished_here.add(Path(location).name)
        _log.warning("%s: finished the commit of a run that was killed", location)
        partition, point = _partition_of(location), result.get("next_offset")
        if partition is not None and type(point) is int and 0 <= point <= MAX_OFFSET:
            points[partition] = point
    markers = [
        _read_marker(path, log_directory, finished=finished_here)
        for path in find_remembered_markers(log_directory)
    ]
    has_one = is_known and len(markers) == 1
    return Resumed(points=points, marker=markers[0] if has_one else None)


def foresee_marker(log_directory: Path) -> bool:
    """Tell whether the next run will put the marker back. Nothing is written, and no lock is
    asked for: what a look can say."""
    if scratch_home(log_directory) is None:
        return False
    try:
        markers = find_remembered_markers(log_directory)
    except StorageError:
        return False  # it is not ours to read
    if len(markers) != 1:
        return False
    finished = find_unfinished_commits(log_directory)
    return _read_marker(markers[0], log_directory, finished=finished) is not None


def find_unfinished_commits(log_directory: Path) -> set[str]:
    """Return the directories in whose commits a run was killed.

    The next run finishes these commits before it does anything else. Where scratch files lie inside
    the partition directories, none is returned.
    """
    home = scratch_home(log_directory)
    if home is None:
        return set()
    try:
        claims = find_claims(log_directory, inside=())
        begun = {claim for claim in claims if (facts := facts_of(claim)) and facts.st_size}
    except (StorageError, OSError):
        return set()  # they are not ours to read
    with storage_errors(log_directory):
        names = [entry.name for entry in scan_folder(log_directory, may_be_link=True)]
    runs = {claim.parent for claim in begun}
    return {
        name
        for name in names
        for run in runs
        if claim_path(str(run), log_directory / name, run.name) in begun
    }


def _drop(claim: Path, log_directory: Path) -> None:
    """Remove an unfinishable claim, and before it any remembered clean marker.

    Should this run be killed as well, the next one finds no claim that tells of it.
    """
    with storage_errors(claim):
        for marker in find_remembered_markers(log_directory):
            marker.unlink(missing_ok=True)
            sync_folder(marker.parent)
        if claim.is_symlink():
            claim.unlink()
            return
    revoke_claim(claim)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RememberedMarker:
    """The marker of a clean shutdown that a run took away."""

    boot: Word | None  # what names the time since the machine was started, None if nothing does
    broker_epoch: Annotated[int, whole(UNKNOWN_BROKER_EPOCH)]
    # What ``observe_partitions`` said of every partition as the run left it.
    partitions: Mapping[str, Word]


_REMEMBERED: Final = JsonFile(_RememberedMarker, layout=ONE_LINE, is_open=True)


def encode_remembered(marker: CleanShutdown, partitions: Mapping[str, str]) -> bytes:
    """Return the record of a clean shutdown marker before its removal.

    Args:
        marker: The one that the directory may have again.
        partitions: What ``observe_partitions`` said of every partition as the run left it.
    """
    return _REMEMBERED.encode(
        _RememberedMarker(
            boot=current_boot(), broker_epoch=marker.broker_epoch, partitions=partitions
        )
    )


def observe_partitions(
    log_directory: Path, seen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a digest of the files of each directory loaded by brokers. Any change of the files
    would change it.

    Args:
        seen: The digests of some directories, by name, which are not listed again; None for none.
    """
    seen = seen or {}
    with storage_errors(log_directory):
        entries = scan_folder(log_directory, may_be_link=True)
    return {
        entry.name: _LINK
        if entry.is_link
        else seen.get(entry.name) or observe_partition(f"{log_directory}/{entry.name}")
        for entry in entries
        if (entry.is_folder or entry.is_link) and _is_loaded(entry.name)
    }


def changed_partitions(
    remembered: Mapping[str, str], log_directory: Path, *, verified: Collection[str]
) -> list[str]:
    """Return the partitions that somebody else may have changed, by name.

    Args:
        remembered: What ``observe_partitions`` said once.
        verified: Those of which it is known otherwise that nobody has.
    """
    present = observe_partitions(log_directory)
    return sorted(
        name
        for name in (remembered.keys() | present.keys()) - set(verified)
        if remembered.get(name) != present.get(name) or present[name] in {_LINK, _UNSEEN}
    )


def observe_partition(directory: str | Path) -> str:
    """Return what any change of the files of a partition would change: see ``digest_versions``."""
    with storage_errors(directory):
        try:
            with open_folder(directory) as folder:
                return digest_versions(FolderEntries.of_folder(folder))
        except (PermissionError, FileNotFoundError):
            return _UNSEEN


def _is_loaded(name: str) -> bool:
    """Tell whether a broker loads a directory with this name."""
    if directory_state(name) == DirectoryKind.FUTURE:
        return True
    try:
        parse_partition_directory(name)
    except InvalidNameError:
        return False
    return True


def _read_marker(path: Path, log_directory: Path, *, finished: set[str]) -> CleanShutdown | None:
    """Return the marker removed by a killed run, None if not believed.

    Args:
        finished: The partitions of which a commit was finished just now: they are as they should
            be, whatever they were when this was written.
    """
    try:
        # The owner of the directory may write a marker into it himself, and nobody else's counts.
        facts = facts_of(log_directory, may_be_link=True)
        trusted = () if facts is None else (facts.st_uid,)
        content = read_small(path, _MOST_BYTES, trusted=trusted)
        remembered = _REMEMBERED.parse(content, str(path))
    except PermissionError as error:
        _log.warning("%s: not believed: %s", path, error.strerror)
        return None
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error
    except ManifestError:
        return None
    if remembered.boot is None or remembered.boot != current_boot():
        return None
    changed = changed_partitions(remembered.partitions, log_directory, verified=finished)
    if changed:
        _log.warning(
            "%s: not marked as cleanly shut down: since a run was killed somebody else has, or may "
            "have, changed %d of its partitions, %s among them",
            log_directory,
            len(changed),
            changed[0],
        )
        return None
    return CleanShutdown(broker_epoch=remembered.broker_epoch)


def _partition_of(location: str) -> TopicPartition | None:
    try:
        return parse_partition_directory(Path(location).name)
    except InvalidNameError:
        return None
