"""A broker's log directory: read, locked as Kafka does, changed by tasks.

Kafka's lock is held from before anything is looked at until after the last byte. The marker of a
clean shutdown is a claim that Kafka's controller believes: it is remembered and removed before the
first file is touched, so that a crash in between looks unclean, and written back, with the broker
epoch it had, only if no partition was left in a state that nobody knows.

A disk that fails takes its directory out of a run over several, not the others: from then on the
run writes no checkpoint there and no marker, and allows no further commits. What had begun is left
to the next run, which finishes it as it does after a kill.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, Self

from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.off_switch import OFF_SWITCH_FILE, is_switched_off
from storage_core.checkpoint.broker_files import (
    UNKNOWN_BROKER_EPOCH,
    CleanShutdown,
    encode_clean_shutdown,
    read_clean_shutdown,
)
from storage_core.checkpoint.checkpoints import (
    CHECKPOINT_FILES,
    encode_offset_checkpoint,
    merge_entries,
    read_checkpoints,
)
from storage_core.checkpoint.lock import LockProof, LockShare, LogDirectoryLock, share_lock
from storage_core.commit.claim import (
    CommitClaim,
    create_claim,
    hold_claim,
    revoke_claim,
    set_aside_claim,
)
from storage_core.commit.purge import (
    Purge,
    Purged,
    apply_purge,
    plan_purge_directory,
    plan_purge_partition,
)
from storage_core.commit.scratch import (
    REMEMBERED_MARKER,
    claim_path,
    create_scratch,
    find_inside,
    is_elsewhere,
    remove_unfinished,
    scratch_folder,
    sweep_scratch,
)
from storage_core.commit.trash import drop_raised, write_raised
from storage_core.commit.undo import with_trash
from storage_core.config import LogConfig
from storage_core.errors import (
    ConfigError,
    GuardRefusedError,
    LogDirectoryNotFoundError,
    PylogError,
    StorageError,
    describe_failure,
)
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from storage_core.local_files import folder_names
from storage_core.roots.broker_undo import BrokerUndo
from storage_core.roots.killed_runs import (
    encode_remembered,
    observe_partition,
    observe_partitions,
    resume_killed_runs,
)
from storage_core.roots.root import (
    TOUCHED,
    HeldRoot,
    PartitionPurge,
    Prepare,
    PurgeRequest,
    Stretch,
)
from storage_core.store import LocalStore, LogStore
from storage_core.store.copying import CopiedRange
from storage_core.store.local import is_without_room, storage_errors
from storage_core.store.open_store import join_location

if TYPE_CHECKING:
    from storage_core.roots.root import HeldRoot

# Purge a broker's log directory of deleted files and partitions. The broker has put them aside
# to remove them itself.

_DEFAULT_DELAY_MS: Final = LogConfig().file_delete_delay_ms
_KINDS: Final = frozenset(
    {DirectoryKind.PARTITION, DirectoryKind.FUTURE, DirectoryKind.STRAY, DirectoryKind.DELETE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryPurge(PartitionPurge):
    """A sub-directory in which there may be something to purge."""

    kind: DirectoryKind | None  # what it is; None for the log directory that cannot be listed
    problem: OSError | None = None


class BrokerPurge:
    """The purge of one log directory.

    Args:
        held: The directory under its lock; None to look only.
    """

    def __init__(self, location: str, request: PurgeRequest, held: "HeldRoot | None") -> None:
        self._location = location
        self._request = request
        self._held = held
        self._forgotten: set[TopicPartition] = set()
        self._forgetting = threading.Lock()

    @property
    def is_here(self) -> bool:
        """Whether what goes lies on this host's disks: it does."""
        return True

    @property
    def find_due(self) -> Callable[[Stretch[DirectoryPurge]], Stretch[DirectoryPurge]]:
        """Returns all of a stretch: each directory is listed by itself."""
        return lambda stretch: stretch

    @property
    def apply(self) -> Callable[[DirectoryPurge], Purged]:
        """Delete the files and partition directories that this purge covers."""
        return self._purge

    def begin(self) -> None:
        """Do nothing: each removal asks for the lock first."""

    def parts(self) -> Iterator[Sequence[Stretch[DirectoryPurge]]]:
        """Yield the sub-directories as one stretch."""
        yield [self._directories]

    def end(self, *, is_whole: bool, now_ms: int) -> Sequence[str]:
        """Do nothing: there is nothing beside the sub-directories."""
        del is_whole, now_ms
        return ()

    @cached_property
    def _directories(self) -> list[DirectoryPurge]:
        """The sub-directories in which something may go."""
        names = self._request.names
        try:
            listed = folder_names(Path(self._location)) if names is None else names
        except OSError as error:
            return [
                DirectoryPurge(location=self._location, partition=None, kind=None, problem=error)
            ]
        directories = []
        for name in listed:
            kind, partition = classify_directory(name)
            path = Path(self._location, name)
            is_asked = self._request.topics.admits(partition.topic if partition else None)
            if is_asked and kind in _KINDS and not path.is_symlink():
                directories.append(
                    DirectoryPurge(location=str(path), partition=partition, kind=kind)
                )
        return directories

    def _purge(self, directory: DirectoryPurge) -> Purged:
        if directory.problem is not None:
            raise directory.problem
        purge = self._plan(directory)
        partition = directory.partition if directory.kind is DirectoryKind.DELETE else None
        if partition is not None and purge.plans and self._held is not None:
            self._forget(partition, self._held)
        fence = None if self._held is None else self._held.validate
        return apply_purge(purge, dry_run=self._held is None, fence=fence)

    def _plan(self, directory: DirectoryPurge) -> Purge:
        """Return what goes of a directory."""
        path, now_ms = Path(directory.location), self._request.now_ms
        if directory.kind is DirectoryKind.DELETE:
            # The topic is gone, and its config with it.
            purge = plan_purge_directory(path, now_ms=now_ms, delay_ms=_DEFAULT_DELAY_MS)
        else:
            # That files with this suffix go is not a question of config: a broker's start drops
            # them all.
            partition = directory.partition
            config = (
                None if partition is None else self._request.catalog.config_for(partition.topic)
            )
            delay_ms = _DEFAULT_DELAY_MS if config is None else config.file_delete_delay_ms
            purge = plan_purge_partition(path, now_ms=now_ms, delay_ms=delay_ms)
        if purge.plans and is_switched_off(directory.location):
            why = f"{directory.location}: {OFF_SWITCH_FILE}"
            raise GuardRefusedError("SWITCHED_OFF", why)
        return purge

    def _forget(self, partition: TopicPartition, held: "HeldRoot") -> None:
        """Drop the checkpoint entries of deleted partitions before their files.

        A broker does that when it renames the directory. One that died in between has not, and
        entries of a partition that is created again would count for the new one. Those of all
        directories that this purge removes go together, for each time every checkpoint is read
        whole, and the log directory listed. Whoever comes meanwhile waits for that.
        """
        with self._forgetting:
            if held.failure is None and partition not in self._forgotten:
                going = self._due | {partition}
                held.drop_entries(going)
                self._forgotten |= going
            if held.failure is not None:
                raise held.failure

    @cached_property
    def _due(self) -> frozenset[TopicPartition]:
        """The partitions with deleted directories that go in this purge. The plans are made
        again when it is their turn: together they name every file."""
        return frozenset(
            each.partition
            for each in self._directories
            if each.kind is DirectoryKind.DELETE and each.partition and self._goes(each)
        )

    def _goes(self, directory: DirectoryPurge) -> bool:
        """Return whether a directory goes; it is planned again in its turn."""
        try:
            return bool(self._plan(directory).plans)
        except (PylogError, OSError):
            return False  # its own row will say why


_log: Final = logging.getLogger(__name__)
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class BrokerRoot:
    """A broker's log directory on this host, or a local copy."""

    path: Path
    has_manifests: ClassVar = False
    has_requests: ClassVar = False

    @property
    def location(self) -> str:
        """Its path."""
        return str(self.path)

    def directories(self) -> list[str]:
        """Return the names of its sub-directories, sorted."""
        try:
            return folder_names(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            reason = f"{error.strerror}: expected a log directory"
            raise LogDirectoryNotFoundError(str(self.path), reason) from error
        except OSError as error:
            raise StorageError(str(self.path), error.strerror or str(error)) from error

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small file, None if it is not there."""
        store = LocalStore(self.path, may_be_link=True)
        return store.read_file(name, limit_bytes=limit_bytes) if store.has(name) else None

    def locate(self, directory: str) -> str:
        """Return the path of a sub-directory."""
        return join_location(str(self.path), directory)

    def newest_write_ms(self) -> int:
        """Return when the newest checkpoint was written, 0 without any."""
        paths = [self.path / name for name in CHECKPOINT_FILES]
        times = [path.stat().st_mtime_ns // 1_000_000 for path in paths if path.exists()]
        return max(times, default=0)

    def purge_of(self, request: PurgeRequest, held: HeldRoot | None) -> BrokerPurge:
        """Return the purge of what the broker has put aside."""
        return BrokerPurge(self.location, request, held)

    def hold(
        self, *, run_id: str, mark_clean: bool, is_alone: bool = True, trash: Path | None = None
    ) -> "HeldBrokerRoot":
        """Return the directory as a run holds it, under Kafka's lock."""
        return HeldBrokerRoot(
            self.location, run_id=run_id, mark_clean=mark_clean, is_alone=is_alone, trash=trash
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """The log directory of a stopped broker, under its lock."""

    run_id: str
    lock: LockProof
    shared: str | None  # the run's scratch folder, None where partitions hold their own
    # The run's folder in the trash, which keeps what its commits take out of directories; None for
    # none.
    trash: Path | None = None

    def validate(self) -> None:
        """Check that the lock is held, on this task's host."""
        share_lock(self.lock).close()

    def open(self, location: str) -> LogStore:
        """Open a partition directory."""
        return LocalStore(Path(location), is_ours=True)

    @contextmanager
    def scratch(self, location: str) -> Iterator[Path]:
        """Return a scratch folder on the log directory's filesystem. The run's end sweeps it."""
        yield self.shared_folder(location)

    def shared_folder(self, location: str) -> Path:
        """Return the scratch folder: all tasks run on the lock's host."""
        return scratch_folder(self.shared, Path(location))

    def keep(
        self,
        location: str,
        attempt: str,
        base_offset: int,
        files: Mapping[str, str],
        gaps: Sequence[CopiedRange] = (),
    ) -> Mapping[str, str]:
        """Return the files unchanged: a rename can promote them from there. They have no gaps."""
        del location, attempt, base_offset, gaps
        return files

    def commit(self, location: str, work: str, prepare: Prepare) -> dict[str, Any]:
        """Commit under the partition's claim, or return a former attempt's result.

        The lock is shared from before anything is looked at until after the last change: nobody
        else gets it, should the run end meanwhile.
        """
        directory = Path(location)
        path = claim_path(self.shared, directory, self.run_id)
        try:
            # Before the claim is opened: another host sees none of the run's files.
            with share_lock(self.lock) as share:
                store = LocalStore(directory, is_ours=True, fence=share.validate)
                with hold_claim(path) as claim, store.held(share=share):
                    try:
                        result = self._begin(store, share, claim, work, prepare)
                        return claim.finish(store) if result is None else result
                    except Exception as error:  # noqa: BLE001  # the row carries it
                        return {TOUCHED: claim.is_begun, **describe_failure(error)}
        except GuardRefusedError as error:
            return {TOUCHED: _may_have_begun(path), **describe_failure(error)}
        except Exception as error:  # noqa: BLE001  # the row carries it
            return {TOUCHED: True, **describe_failure(error)}

    @contextmanager
    def alone(self, location: str) -> Iterator[LogStore]:
        """Open a partition for the block, with no other attempt on it.

        For what may be done again, from wherever another attempt has left it: the claim says who
        goes on, and nothing is written down in it.
        """
        path = claim_path(self.shared, Path(location), self.run_id)
        with share_lock(self.lock) as share:
            store = LocalStore(Path(location), fence=share.validate)
            with hold_claim(path), store.held(share=share):
                yield store

    def _begin(
        self,
        store: LocalStore,
        share: LockShare,
        claim: CommitClaim,
        work: str,
        prepare: Prepare,
    ) -> dict[str, Any] | None:
        """Begin a commit that no other attempt has begun; return the result if there is nothing to
        commit."""
        if claim.is_begun:
            return None
        prepared = prepare(store)
        plan = prepared.plan
        if plan is None:
            return prepared.result
        if self.trash is not None:
            plan = with_trash(plan, store, self.trash, action=work)
        # To prepare may have taken hours.
        share.validate()
        claim.begin(plan, prepared.result, entries=store.seen)
        return None


def _may_have_begun(path: Path) -> bool:
    """Tell whether an attempt may have begun the claim's commit.

    Of an attempt that is refused: it only looks, and holds nothing. Where no claim is the run is
    over, and has looked itself; or this is another host, which sees none of the run's files.
    """
    try:
        return path.lstat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _unless_failed(
    method: "Callable[Concatenate[HeldBrokerRoot, _P], None]",
) -> "Callable[Concatenate[HeldBrokerRoot, _P], None]":
    """Skip the method after a disk failure; note a new failure. What the method does is refused
    where the lock is lost."""

    @wraps(method)
    def guarded(self: "HeldBrokerRoot", /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self.failure is not None:
            return
        self.validate()
        try:
            method(self, *args, **kwargs)
        except StorageError as error:
            self.give_up(error)

    return guarded


class HeldBrokerRoot:
    """One log directory under Kafka's lock; a context manager.

    Args:
        mark_clean: Whether the marker of a clean shutdown is written back at all.
        trash: The run's folder in the trash, which keeps what commits take out of partitions; None
            for none.

    Attributes:
        failure: What the disk failed with; None as long as it did not.
    """

    def __init__(
        self,
        location: str,
        *,
        run_id: str,
        mark_clean: bool,
        is_alone: bool = True,
        trash: Path | None = None,
    ) -> None:
        self.location = location
        self.is_alone = is_alone
        self._trash = trash
        self.failure: StorageError | None = None
        self._run_id = run_id
        self._mark_clean = mark_clean
        self._files = BrokerRoot(Path(location))
        self._lock = LogDirectoryLock(Path(location))
        self._store = LocalStore(Path(location), may_be_link=True, fence=self.validate)
        self._marker: CleanShutdown | None = None
        self._brokers_own: CleanShutdown | None = None
        self._claims: list[Path] = []
        # What partitions look like, and which of them commits may have changed since.
        self._partitions: dict[str, str] = {}
        self._changing: set[str] = set()
        self._writes = False
        self._is_settled = True
        self._is_whole = True
        self._scratch: str | None = None

    def __enter__(self) -> Self:
        self._lock.acquire()
        try:
            # What is inside of partitions is looked for once: that is a listing of every one.
            inside = find_inside(Path(self.location))
            resumed = resume_killed_runs(Path(self.location), inside=inside, fence=self.validate)
            self.write_cleaner_points(resumed.points)
            if resumed.marker is not None and read_clean_shutdown(self._files) is None:
                self._write_marker(resumed.marker)
            remove_unfinished(Path(self.location))
            swept = sweep_scratch(Path(self.location), inside=inside)
            if swept:
                _log.warning("%s: removed %d scratch files of killed runs", self.location, swept)
            self._marker = self._brokers_own = read_clean_shutdown(self._files)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # A run whose work is done ends anyhow: its report says what the disk failed with.
        self.is_alone = self.is_alone and error is not None
        with ExitStack() as last:
            last.callback(self._lock.release)
            last.callback(self._set_claims_aside)
            self._give_back()

    def give_up(self, error: StorageError) -> None:
        """Note a disk failure: leave the directory alone from now on."""
        if self.is_alone:
            raise error
        if self.failure is None:
            self.failure = error
            _log.error("%s: the disk failed, the run goes on without: %s", self.location, error)

    def validate(self) -> None:
        """Check that the lock is still held."""
        self._lock.validate_held()

    @property
    def was_clean(self) -> bool:
        """Whether the broker closed every log of the directory before it ended."""
        return self._marker is not None

    @property
    def proof(self) -> LockProof:
        """What tasks check before they write."""
        return self._lock.proof

    @property
    def access(self) -> BrokerAccess:
        """How tasks read and change its partitions; the same from ``begin_writing`` on."""
        return BrokerAccess(
            run_id=self._run_id, lock=self.proof, shared=self._scratch, trash=self._trash
        )

    def free_bytes(self) -> int:
        """Return the free bytes of its filesystem; 0 after a disk failure. It is 0 as well where
        the disk fails now."""
        if self.failure is not None:
            return 0
        try:
            return shutil.disk_usage(self.location).free
        except OSError as error:
            self.give_up(StorageError(self.location, error.strerror or str(error)))
            return 0

    def undo_of(self, run_id: str, folder: Path | None) -> BrokerUndo:
        """Return the undo of a run from its folder in the trash."""
        if folder is None:
            raise ConfigError("--trash", None, f"say where the trash of run {run_id} is")
        return BrokerUndo(self, self._files, folder)

    @property
    def scratch(self) -> str | None:
        """The run's scratch folder; None if files lie in partition directories. These are the
        scratch files."""
        return self._scratch

    @_unless_failed
    def begin_writing(self, seen: Mapping[str, str] | None = None) -> None:
        """Remove the clean shutdown marker and create the scratch folder once. The second time,
        nothing is done.

        Args:
            seen: As of ``HeldRoot``.
        """
        if self._writes:
            return
        scratch = create_scratch(Path(self.location), self._run_id)
        self._scratch = None if scratch is None else str(scratch)
        self._writes = True
        self._observe_all(seen)
        self._remember()
        self._store.delete(CLEAN_SHUTDOWN_FILE)
        self._store.sync_directory()

    @_unless_failed
    def allow_commits(self, directories: Iterable[str | Path]) -> None:
        """Let tasks commit these partitions; a crash now needs a recovery. From here on it
        leaves the directory unclean."""
        self._is_settled = False
        for directory in map(Path, directories):
            path = claim_path(self._scratch, directory, self._run_id)
            create_claim(path)
            self._claims.append(path)
            self._changing.add(directory.name)

    @_unless_failed
    def settle_commits(self, points: Mapping[TopicPartition, int], *, is_whole: bool) -> None:
        """Note the end of the commits and the new cleaner points.

        Args:
            points: New cleaner points of the partitions that were cleaned.
            is_whole: Whether every partition is in a state that is known: as it was, or done.
        """
        self._is_whole = self._is_whole and is_whole
        self._observe_changed()
        # First, so that a kill in between makes nobody clean these partitions once more.
        self.write_cleaner_points(points)
        self._revoke_claims()
        self._is_settled = self._is_whole

    @_unless_failed
    def write_cleaner_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Put entries into the cleaner checkpoint; drop those of deleted partitions. As Kafka's
        cleaner does it: a rewrite keeps what has a directory here."""
        if not points:
            return
        checkpoint = read_checkpoints(self._files, [CLEANER_FILE]).entries.get(CLEANER_FILE, {})
        merged = {**checkpoint, **points}
        if merged != checkpoint:
            merged = {
                partition: offset for partition, offset in merged.items() if self._holds(partition)
            }
            self._store.write_file(CLEANER_FILE, encode_offset_checkpoint(merged))

    @_unless_failed
    def drop_entries(self, partitions: Collection[TopicPartition]) -> None:
        """Take partitions that were deleted out of all checkpoints.

        But for one that is here again, or is being moved here: a broker loads it with the entries
        of that name.
        """
        absent = {partition for partition in partitions if not self._holds(partition)}
        gone = absent - self._coming()
        if gone:
            for name in CHECKPOINT_FILES:
                self._merge(name, dict.fromkeys(gone))

    @_unless_failed
    def raise_cleaner_points(self, log_starts: Mapping[TopicPartition, int]) -> None:
        """Raise cleaner checkpoint entries to the new log starts. Those that lie below where the
        logs start now are raised."""
        read = read_checkpoints(self._files, [CLEANER_FILE], strict=False)
        entries = read.entries.get(CLEANER_FILE, {})
        self.write_cleaner_points(
            {
                partition: start
                for partition, start in log_starts.items()
                if partition in entries and entries[partition] < start
            }
        )

    @_unless_failed
    def write_checkpoints(self, changes: Mapping[str, Mapping[TopicPartition, int | None]]) -> None:
        """Put entries into checkpoints, file by file; lines of other partitions stay.

        A checkpoint that is malformed is left as it is: what it said of others is not ours to lose.

        Args:
            changes: Offsets by file; None for a partition that has none any more.
        """
        for name, entries in changes.items():
            self._merge(name, entries)

    def raise_log_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Raise log starts in their checkpoint, before the first segment goes."""
        if self._trash is not None:
            # An undo has to know of those whose commits did not begin before a kill.
            named = {str(partition): start for partition, start in starts.items()}
            write_raised(self._trash, {self.location: named})
        if self._scratch is None or not is_elsewhere(self._scratch):
            self.write_checkpoints({LOG_START_FILE: starts})
        # Else there is no room for it before segments go. A log begins at its first segment then.

    def settle_log_starts(self, entries: Mapping[TopicPartition, int | None]) -> None:
        """Put log starts into their checkpoint, once the segments are gone."""
        self.write_checkpoints({LOG_START_FILE: entries})
        if self._trash is not None and self.failure is None:
            drop_raised(self._trash, [self.location])

    @_unless_failed
    def disown_marker(self) -> None:
        """Let the marker written at the end name no broker epoch. What is removed may have been
        more than other replicas have."""
        if self.was_clean:
            self._marker = CleanShutdown(broker_epoch=UNKNOWN_BROKER_EPOCH)
            self._remember()

    @_unless_failed
    def own_marker(self) -> None:
        """Let the marker name the broker's epoch again. After all nothing was removed since it
        was disowned."""
        if self.was_clean:
            self._marker = self._brokers_own
            self._remember()

    @_unless_failed
    def claim_clean(self) -> None:
        """Let the directory end with a clean shutdown marker.

        By no broker: its epoch is unknown to the controller, which then takes nothing for granted.
        Whatever its partitions look like now, they are as they should be.
        """
        self._marker = CleanShutdown(broker_epoch=UNKNOWN_BROKER_EPOCH)
        self._observe_all()
        self._remember()

    @_unless_failed
    def claim_unclean(self) -> None:
        """Let the directory end without a marker, for a log recovery."""
        self._marker = None
        self._remember()

    @_unless_failed
    def attest_marker(self, broker_epoch: int) -> None:
        """Write the broker's last epoch into the clean shutdown marker. The controller knows that
        epoch.

        No record that another replica has may be missing: then the broker is as it was when it
        ended. One rename does it, so that a crash leaves the old marker or the new one.
        """
        if self.was_clean:
            self._marker = self._brokers_own = CleanShutdown(broker_epoch=broker_epoch)
            self._write_marker(self._marker)

    def _write_marker(self, marker: CleanShutdown) -> None:
        try:
            self._store.write_file(CLEAN_SHUTDOWN_FILE, encode_clean_shutdown(marker.broker_epoch))
        except StorageError as error:
            if not is_without_room(error):
                raise
            # An empty one needs no room, and says that no broker epoch is known.
            self._store.create_empty(CLEAN_SHUTDOWN_FILE)

    @_unless_failed
    def _give_back(self) -> None:
        if self._writes and self._is_whole and not self._is_settled:
            # Interrupted amid commits: what had begun is finished here, as the next run would
            # finish it after a kill. Else an interrupt would cost a recovery, and a kill would not.
            resumed = resume_killed_runs(
                Path(self.location), inside=self._inside, fence=self.validate
            )
            self.write_cleaner_points(resumed.points)
            if self.failure is not None:
                return
            self._is_settled = resumed.marker is not None
            if self._is_settled:
                self._observe_changed()
        self._revoke_claims()
        if self._writes:
            if self._marker is not None and self._mark_clean and self._is_settled:
                self._write_marker(self._marker)
            # Last: until the marker is there, only the scratch files know which it was.
            sweep_scratch(Path(self.location), inside=self._inside)

    @property
    def _inside(self) -> tuple[()] | None:
        """This run's files inside partitions: none with a scratch folder beside. None: every
        partition has to be asked."""
        return None if self._scratch is None or is_elsewhere(self._scratch) else ()

    def _observe_all(self, seen: Mapping[str, str] | None = None) -> None:
        """Record digests of all partitions, for a run after a kill. It finds what this run has
        left."""
        if self._scratch is not None and self._marker is not None:
            self._partitions = observe_partitions(self._store.directory, seen)

    def _observe_changed(self) -> None:
        """Update the digests of partitions possibly changed by commits. Afterwards no claim
        tells of these changes any more."""
        there = self._changing.intersection(self._files.directories() if self._changing else ())
        for name in self._changing:
            self._partitions.pop(name, None)
            if name in there:
                self._partitions[name] = observe_partition(f"{self.location}/{name}")
        self._changing.clear()
        self._remember()

    def _remember(self) -> None:
        """Write down the marker to restore if this run is killed. The directory may have it
        then."""
        if not self._writes or self._scratch is None:
            return
        scratch = LocalStore(Path(self._scratch))
        if self._marker is not None and self._is_whole:
            scratch.write_file(REMEMBERED_MARKER, encode_remembered(self._marker, self._partitions))
        else:
            scratch.delete(REMEMBERED_MARKER)

    def _holds(self, partition: TopicPartition) -> bool:
        return (self._store.directory / str(partition)).is_dir()

    def _coming(self) -> set[TopicPartition | None]:
        """Return the partitions of which a copy is on its way here."""
        with storage_errors(self._store.directory):
            kinds = map(classify_directory, folder_names(self._store.directory))
        return {partition for kind, partition in kinds if kind is DirectoryKind.FUTURE}

    def _merge(self, name: str, entries: Mapping[TopicPartition, int | None]) -> None:
        read = read_checkpoints(self._files, [name], strict=False)
        if name in read.problems:
            return
        checkpoint = read.entries.get(name, {})
        merged = merge_entries(checkpoint, entries)
        if merged == checkpoint:
            return
        content = encode_offset_checkpoint(merged)
        try:
            self._store.write_file(name, content)
        except StorageError as error:
            if name != RECOVERY_POINT_FILE or not is_without_room(error):
                raise
            # Its own block is room enough. A start without the file reads every log.
            self._store.delete(name)
            self._store.write_file(name, content)

    def _revoke_claims(self) -> None:
        """Wait for commits under way, and let no more begin."""
        for path in self._claims:
            revoke_claim(path)
        self._claims.clear()

    def _set_claims_aside(self) -> None:
        """Set unfinished commits' claims aside, so that no late task commits. This run could not
        bring these commits to their end.

        Where the lock is lost no task commits anyhow: the next run finishes what one has begun.
        """
        try:
            self.validate()
        except GuardRefusedError:
            return
        for path in self._claims:
            try:
                set_aside_claim(path)
            except PylogError as error:
                _log.warning("%s: left as it is: %s", path, error)


def write_checkpoints(
    directory: Path, files: Mapping[str, Mapping[TopicPartition, int | None]]
) -> None:
    """Write a log directory's checkpoint files; lines of other partitions stay.

    Args:
        files: By the name of the file: offsets by partition; None takes a line out.
    """
    store = LocalStore(directory, may_be_link=True)
    read = read_checkpoints(BrokerRoot(directory), files)
    for name, offsets in files.items():
        current = read.entries.get(name)
        merged = merge_entries(current or {}, offsets)
        if merged != current:
            store.write_file(name, encode_offset_checkpoint(merged))
