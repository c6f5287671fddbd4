"""How a task reads and changes a partition: what a broker's directory and a managed root differ in.

The passes of compaction, retention and their commits are the same for both. What differs stands
behind ``RootAccess``: the proof that this run may write, where an attempt puts its files, and what
makes a commit happen once. A broker's directory has Kafka's lock, scratch files on its own
filesystem and a claim file for each partition. A managed root has a lease, new immutable objects
for each attempt, and a manifest whose conditional PUT is the commit.

A row that says an error also says whether files may have been changed: then the log directory gets
no marker of a clean shutdown. What is not known counts as changed. A former attempt may have been
killed amid its commit; so an attempt that cannot look into the claim, for whatever reason, cannot
say that nothing was touched.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from pylog_spark.tasks.failures import describe_failure
from storage_core.checkpoint.lock import LockProof, validate_on_holder_host
from storage_core.commit import Plan
from storage_core.commit.claim import CommitClaim, hold_claim
from storage_core.commit.keep import with_trash
from storage_core.commit.scratch import claim_path, scratch_folder
from storage_core.errors import GuardRefusedError
from storage_core.maintenance.compaction.rewrite import CleanedGroup
from storage_core.store import LocalStore, LogStore
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.open_objects import MANAGED_PREFIX

TOUCHED: Final = "touched"
# Set by Spark in each of its Python workers; what lies there goes when the executor ends.
_SPARK_LOCAL_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChanges:
    """Offsets of a partition that a commit moves; None leaves one as it is.

    In a broker's directory they stand in files of the whole directory, which the driver alone
    writes; in a managed root they are part of the partition's manifest.

    Attributes:
        log_start_offset: First offset that may be read.
        cleaner_offset: Where the next round of compaction begins.
    """

    log_start_offset: int | None = None
    cleaner_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What an attempt is about to commit.

    Attributes:
        result: The partition's row as it is once that is done; plain values.
        plan: The operations; None where there is nothing to do, and the row says why.
        checkpoints: What goes with them.
    """

    result: dict[str, Any]
    plan: Plan | None
    checkpoints: CheckpointChanges = field(default_factory=CheckpointChanges)


# Looks at a partition once more and says what is to be done to it.
Prepare = Callable[[LogStore], Prepared]


class RootAccess(Protocol):
    """What tasks need of one root; a value that pickles."""

    def validate(self) -> None:
        """Check that this run may still write there.

        Raises:
            GuardRefusedError: It may not, or not from this host.
        """
        ...

    def open(self, location: str) -> LogStore:
        """Open a partition for reading.

        Args:
            location: As a plan names it.
        """
        ...

    def scratch(self, location: str) -> AbstractContextManager[Path]:
        """Return where an attempt on a partition writes its files, for the time of a block."""
        ...

    def keep(self, location: str, attempt: str, group: CleanedGroup) -> CleanedGroup:
        """Bring the files of a group to where another task can promote them; on disk no more.

        Args:
            location: The partition.
            attempt: Name of the attempt that wrote them; no other has it.
            group: Its files lie in the scratch folder.
        """
        ...

    def commit(self, location: str, work: str, prepare: Prepare) -> dict[str, Any]:
        """Commit a piece of work on a partition once, however often and wherever this is called.

        Args:
            location: The partition, as it was planned from.
            work: Name of the work; a run does not do two of one name on a partition.
            prepare: Called unless a former attempt of the same work has begun.

        Returns:
            The result of the attempt that did it; or the error, and whether files may have been
            touched.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """The log directory of a stopped broker, under its lock.

    Attributes:
        run_id: The run.
        lock: Proof of the lock.
        shared: The run's scratch folder, None where partitions hold their own.
        trash: The run's folder in the trash, which keeps what its commits take out of
            directories; None for none.
    """

    run_id: str
    lock: LockProof
    shared: str | None
    trash: Path | None = None

    def validate(self) -> None:
        """Check that this task runs where the lock is held."""
        validate_on_holder_host(self.lock)

    def open(self, location: str) -> LogStore:
        """Open a partition directory."""
        return LocalStore(Path(location))

    @contextmanager
    def scratch(self, location: str) -> Iterator[Path]:
        """Return a folder on the filesystem of the log directory; the run's end sweeps it."""
        yield scratch_folder(self.shared, Path(location))

    def keep(self, location: str, attempt: str, group: CleanedGroup) -> CleanedGroup:
        """Return the group as it is: its files lie where they can be renamed from."""
        del location, attempt
        return group

    def commit(self, location: str, work: str, prepare: Prepare) -> dict[str, Any]:
        """Commit under the partition's claim, or find in it what a former attempt did."""
        store = LocalStore(Path(location))
        path = claim_path(self.shared, store.directory, self.run_id)
        try:
            # Before the claim is opened: another host sees none of the run's files.
            self.validate()
            with hold_claim(path) as claim:
                try:
                    return self._commit(store, claim, work, prepare)
                except Exception as error:  # noqa: BLE001  # the row carries it
                    return {TOUCHED: claim.is_begun, **describe_failure(error)}
        except GuardRefusedError as error:
            return {TOUCHED: _may_have_begun(path), **describe_failure(error)}
        except Exception as error:  # noqa: BLE001  # the row carries it
            return {TOUCHED: True, **describe_failure(error)}

    def _commit(
        self, store: LocalStore, claim: CommitClaim, work: str, prepare: Prepare
    ) -> dict[str, Any]:
        if not claim.is_begun:
            prepared = prepare(store)
            plan = prepared.plan
            if plan is None:
                return prepared.result
            if self.trash is not None:
                plan = with_trash(plan, store, self.trash, action=work)
            claim.begin(plan, prepared.result)
        return claim.finish(store)


def _may_have_begun(path: Path) -> bool:
    """Whether an attempt may have begun with the commit that a claim allows.

    Of an attempt that is refused: it only looks, and holds nothing. Where no claim is the run is
    over, and has looked itself; or this is another host, which sees none of the run's files.
    """
    try:
        return path.lstat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True


def root_of(location: str) -> str:
    """Return the root of a partition by its location, as rows name it."""
    place, _, _ = location.removeprefix(MANAGED_PREFIX).partition(GENERATION_MARK)
    return place.rpartition("/")[0]


@contextmanager
def local_scratch() -> Iterator[Path]:
    """Return a folder of its own on this executor's disks; gone when the block ends.

    Of the directories that Spark was given it is the one with the most room.
    """
    named = os.environ.get(_SPARK_LOCAL_DIRECTORIES, "").split(",")
    places = [Path(name) for name in named if name and Path(name).is_dir()]
    chosen = max(places, key=lambda place: shutil.disk_usage(place).free, default=None)
    with tempfile.TemporaryDirectory(prefix="pylog-scratch-", dir=chosen) as folder:
        yield Path(folder)
