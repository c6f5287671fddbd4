"""A source's disk, and the disks of a stopped target with a topic of two replicas."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_cluster_metadata,
)
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
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
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    TopicPartition,
)
from storage_core.formats.batch_v2 import Codec
from storage_core.messages.fields import FieldWriter
from storage_core.messages.internal_records import TRANSACTION_RECORDS
from storage_core.roots.broker import BrokerRoot
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker, in_a_row, some_batches
from tests.kit.directories import ProducerSpec, SegmentSpec, write_partition
from tests.storage_core.catalog import metadata_bytes as md

CLUSTER: Final = "V3CHegy_ZdcmiWckVUA0FQ"
NOW_MS: Final = 1_700_000_900_000
ORDERS: Final = TopicPartition("orders", 0)
LEADER_EPOCH: Final = 1
LOG_START: Final = 3
OPEN_PRODUCER: Final = 8
CLOSED_PRODUCER: Final = 7
# One batch of each codec, a whole transaction, and one that is open, which compaction thinned out.
BATCHES: Final = in_a_row(
    [
        *(some_batches(count=1, records=4, codec=codec, leader_epoch=17)[0] for codec in Codec),
        BatchSpec(
            records=(RecordSpec(key=b"k", value=b"in a transaction"),),
            leader_epoch=18,
            producer_id=CLOSED_PRODUCER,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        ),
        end_txn_marker(base_offset=0, producer_id=CLOSED_PRODUCER, producer_epoch=0),
        BatchSpec(
            records=(RecordSpec(key=b"k", value=b"open"),),
            leader_epoch=23,
            producer_id=OPEN_PRODUCER,
            producer_epoch=2,
            base_sequence=5,
            is_transactional=True,
            last_offset_delta=3,
        ),
    ]
)
END: Final = BATCHES[-1].next_offset
SEGMENTS: Final = (
    SegmentSpec(base_offset=0, batches=BATCHES[:3], modified_ms=NOW_MS - 5000),
    SegmentSpec(base_offset=BATCHES[3].base_offset, batches=BATCHES[3:], modified_ms=NOW_MS - 4000),
)
CLOSED: Final = ProducerSpec(
    producer_id=CLOSED_PRODUCER, producer_epoch=0, last_timestamp=NOW_MS, coordinator_epoch=0
)
OPEN: Final = ProducerSpec(
    producer_id=OPEN_PRODUCER,
    producer_epoch=2,
    last_sequence=5,
    last_offset=END - 1,
    offset_delta=3,
    last_timestamp=NOW_MS,
    coordinator_epoch=4,
    current_txn_first_offset=BATCHES[-1].base_offset,
)
# The open transaction, as its coordinator has it once its producer commits it.
STATE: Final[Mapping[str, object]] = {
    "producer_id": OPEN_PRODUCER,
    "producer_epoch": 3,
    "transaction_timeout_ms": 60_000,
    "transaction_status": 2,
    "transaction_partitions": [{"topic": "orders", "partition_ids": [0]}],
    "transaction_last_update_timestamp_ms": NOW_MS,
    "transaction_start_timestamp_ms": NOW_MS,
    "previous_producer_id": -1,
    "next_producer_id": -1,
    "client_transaction_version": 2,
    "next_producer_epoch": -1,
}
# Those of a cluster whose coordinators know no transactional id.
NO_TRANSACTIONS: Final = TransactionCoordinators()
PRODUCER_IDS: Final = md.frame(15, md.int32(1) + bytes(8) + (1000).to_bytes(8) + md.NO_TAGS)


def write_source(
    root: Path,
    segments: Sequence[SegmentSpec] = SEGMENTS,
    *,
    name: str = "orders-0",
    is_clean: bool = True,
) -> Path:
    """Write a log directory of the source with one log, closed, and return the log's directory."""
    directory = write_partition(
        root / name,
        [*segments, SegmentSpec(base_offset=END, producers=[CLOSED, OPEN])]
        if segments is SEGMENTS
        else segments,
    )
    starts = {ORDERS: LOG_START} if segments is SEGMENTS else {}
    (root / LOG_START_FILE).write_bytes(encode_offset_checkpoint(starts))
    if is_clean:
        (root / CLEAN_SHUTDOWN_FILE).write_text('{"version":0,"brokerEpoch":-1}')
    return directory


def write_states(
    root: Path, *records: Mapping[str, object], number: int = 0, name: str = "tx"
) -> Path:
    """Write a partition of the coordinators of transactions; return its directory.

    Args:
        root: The log directory.
        records: Fields of the value of each record; of the open producer where they say nothing.
        number: The partition.
        name: The transactional id of all records.
    """
    message = TRANSACTION_RECORDS[0]
    assert message.key is not None
    key = FieldWriter()
    key.int16(0)
    message.key.write(key, 0, {"transactional_id": name})
    specs = []
    for each in records:
        value = FieldWriter()
        value.int16(1)
        message.value.write(value, 1, {**STATE, **each})
        specs.append(BatchSpec(records=(RecordSpec(key=key.data, value=value.data),)))
    starts = root / LOG_START_FILE
    former = starts.read_bytes() if starts.exists() else None
    segment = SegmentSpec(base_offset=0, batches=in_a_row(specs))
    directory = write_source(root, [segment], name=f"__transaction_state-{number}", is_clean=False)
    if former is not None:
        starts.write_bytes(former)
    return directory


def coordinators_of(*roots: Path, count: int | None = 1) -> TransactionCoordinators:
    """Return what the coordinators in log directories know of transactions."""
    places = [place for root in roots for place in find_places(root)]
    return read_transactions(places, partition_count=count, now_ms=NOW_MS)


def write_properties(disk: Path, node: int, cluster: str = CLUSTER) -> None:
    """Write the properties of a log directory."""
    lines = (
        "version=1",
        f"cluster.id={cluster}",
        f"node.id={node}",
        f"directory.id={md.DIRECTORY}",
    )
    (disk / META_PROPERTIES_FILE).write_text("\n".join(lines) + "\n")


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
                partition=self.assignment.target,
                homes=self.homes,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )
            for error in put_in_place([built], scratches, held).values():
                raise error
