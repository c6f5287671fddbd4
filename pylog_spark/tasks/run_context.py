"""The context of a run's tasks: values only, equal for all. It is made on the driver."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pylog_spark.options import JobOptions
from pylog_spark.schemas import PartitionName
from pylog_spark.tasks.ahead import Answer, Item, is_remote, map_ahead, map_in_turns
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.config.values import DOUBLE_MAX
from storage_core.filenames import TopicPartition
from storage_core.maintenance.throttler import Throttler, share_of
from storage_core.roots.root import RootAccess

# Which partition a plan, a task and an outcome are about.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRef:
    """One partition of a run."""

    ordinal: int  # its row in the run's table of plans, by which outcomes are told apart
    root: str
    directory: str  # its own directory: a path, or the location of a managed partition
    partition: TopicPartition

    @property
    def name(self) -> PartitionName:
        """Its name in rows and log lines."""
        topic, partition = self.partition.topic, self.partition.partition
        return PartitionName(root=self.root, topic=topic, partition=partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The values that observation and planning share."""

    run_id: str  # name of the run; part of the names of its scratch files
    # Its options, without passwords. Their ``now_ms`` is the one clock of the run: tasks have no
    # clock of their own.
    options: JobOptions
    hash_key: bytes = field(repr=False)  # 16 bytes of key for the offset maps, fresh for each run
    catalogs: Mapping[str, TopicCatalog]
    unclean_roots: frozenset[str]  # broker roots without the marker of a clean shutdown
    remote_roots: frozenset[str] = frozenset()  # roots whose broker kept segments in remote storage
    # Digests of the operations that a saved plan has, by directory: other recoveries are not made.
    # None where any may be made.
    expected_recoveries: Mapping[str, str] | None = None
    # Partition directories that a recovery of this run did not bring in order.
    unrecovered: frozenset[str] = frozenset()

    def is_unclean(self, root: str, directory: str) -> bool:
        """Whether a partition needs recovery before anything else."""
        return root in self.unclean_roots or directory in self.unrecovered


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """The values that tasks need to write; a dry run has none."""

    run: RunContext
    roots: Mapping[str, RootAccess]
    tasks_at_once: int = 1  # how many tasks share the budget of bytes a second
    threads: int = 1  # how many threads one task may use

    def map_commits(
        self, commit: Callable[[Item], Answer], items: Iterable[Item]
    ) -> Iterator[Answer]:
        """Yield the result of each partition's commit, in order. Several wait at once."""
        map_each = map_ahead if any(map(is_remote, self.roots)) else map_in_turns
        return map_each(commit, items)

    @property
    def has_rate(self) -> bool:
        """Whether tasks keep to a number of bytes a second."""
        return 0 < self.run.options.cleaner.io_max_bytes_per_second < DOUBLE_MAX

    def throttler(self) -> Throttler:
        """Return the throttler for one task's share of the run's bandwidth. That is its share of
        the run's bytes a second."""
        rate = self.run.options.cleaner.io_max_bytes_per_second
        return Throttler(share_of(rate, tasks=self.tasks_at_once))
