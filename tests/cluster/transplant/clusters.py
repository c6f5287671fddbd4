"""A source's disk, and the disks of a stopped target with a topic of two replicas."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.cluster.transplant.plan import (
    Assignment,
    TargetDirectory,
    Transplant,
    TransplantRequest,
    assign_logs,
    open_log,
    plan_transplant,
)
from storage_core.cluster.transplant.replica import (
    BuiltReplicas,
    NewLog,
    build_replicas,
    put_in_place,
    scratch_folder,
)
from storage_core.cluster.transplant.source import (
    SourcePlace,
    find_places,
    read_transactions,
)
from storage_core.coordinators.transactions import TransactionCoordinators
from storage_core.roots.broker import BrokerRoot
from tests.kit.source_disk import NOW_MS, write_properties
from tests.storage_core.catalog import metadata_bytes as md

LEADER_EPOCH: Final = 1
# Those of a cluster whose coordinators know no transactional id.
NO_TRANSACTIONS: Final = TransactionCoordinators()
PRODUCER_IDS: Final = md.frame(15, md.int32(1) + bytes(8) + (1000).to_bytes(8) + md.NO_TAGS)


def coordinators_of(*roots: Path, count: int | None = 1) -> TransactionCoordinators:
    """Return what the coordinators in log directories know of transactions."""
    places = [place for root in roots for place in find_places(root)]
    return read_transactions(places, partition_count=count, now_ms=NOW_MS)


@dataclass(kw_only=True)
class Target:
    """The disks of nodes 1 and 2, and the metadata of their cluster."""

    folder: Path
    replicas: tuple[int, ...] = (1, 2)
    values: Sequence[bytes] = ()
    disks: list[Path] = field(init=False)
    metadata: ClusterMetadata = field(init=False)

    def __post_init__(self) -> None:
        self.disks = [self.folder / f"disk{node}" for node in (1, 2)]
        for disk in self.disks:
            disk.mkdir(parents=True)
        values = self.values or [
            *(md.topic("orders", md.ID_A), md.partition(0, md.ID_A, replicas=self.replicas)),
            md.partition_change(0, md.ID_A, {1: md.int32(2)}),
        ]
        directory = self.folder / CLUSTER_METADATA_DIRECTORY
        md.write_segment(directory, [md.batch(*values, PRODUCER_IDS)])
        self.metadata = read_cluster_metadata(directory)

    def as_brokers(self) -> list[Path]:
        """Let the disks be those of brokers, the metadata on the first; return them."""
        for node, disk in enumerate(self.disks, start=1):
            write_properties(disk, node)
        metadata = self.folder / CLUSTER_METADATA_DIRECTORY
        metadata.rename(self.disks[0] / metadata.name)
        return self.disks

    def directories(self) -> list[TargetDirectory]:
        """Return the log directories."""
        return [
            TargetDirectory(path=disk, node_id=node, directory_id=md.DIRECTORY)
            for node, disk in enumerate(self.disks, start=1)
        ]

    def request(self, *places: SourcePlace, **changes: object) -> TransplantRequest:
        """Return the request to give all topics of some places to the target."""
        values = {
            "places": places,
            "topics": frozenset(place.partition.topic for place in places),
            "names": {},
            "counts": {},
            "metadata": self.metadata,
            "directories": self.directories(),
            "keeps_producers": False,
            "now_ms": NOW_MS,
        }
        return TransplantRequest(**{**values, **changes})

    def plan(
        self,
        *roots: Path,
        coordinators: TransactionCoordinators = NO_TRANSACTIONS,
        **changes: object,
    ) -> list["PlannedLog"]:
        """Return what becomes of the logs in log directories."""
        places = [place for root in roots for place in find_places(root)]
        return [
            PlannedLog.of(assignment, plan_transplant(assignment, coordinators), coordinators)
            for assignment in assign_logs(self.request(*places, **changes))
        ]


@dataclass(frozen=True, kw_only=True)
class PlannedLog(Transplant):
    """A partition, and what becomes of it."""

    assignment: Assignment
    coordinators: TransactionCoordinators

    @classmethod
    def of(
        cls, assignment: Assignment, plan: Transplant, coordinators: TransactionCoordinators
    ) -> "PlannedLog":
        values = {each.name: getattr(plan, each.name) for each in fields(plan)}
        return cls(assignment=assignment, coordinators=coordinators, **values)

    def open(self) -> NewLog:
        """Open the log that goes."""
        return open_log(self.assignment, self.location, self.coordinators)

    def write(self, log: NewLog | None = None) -> None:
        """Write its replicas; raises the error of the partition."""
        assert self.reason is None, self.detail
        with ExitStack() as stack:
            held = {
                home: stack.enter_context(
                    BrokerRoot(home).hold(run_id="run", mark_clean=True, is_alone=False)
                )
                for home in self.homes
            }
            scratches = {home: stack.enter_context(scratch_folder(home)) for home in self.homes}
            build_replicas(log or self.open(), list(scratches.values()))
            built = BuiltReplicas(
                partition=self.assignment.target.partition,
                homes=self.homes,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )
            for error in put_in_place([built], scratches, held).values():
                raise error
