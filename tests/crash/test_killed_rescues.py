"""Kills of the commands that bring a cluster back: transplant, heal, promote, adopt, rebuild.

Each kill is followed by the same command, or by what takes it back. Then no folder and no
checkpoint entry of it is left, real brokers start, and all replicas are in sync.

``make rescues`` does it N=60 times: the cluster is started on each state of its disks that none of
the kills before had led to. ``make test`` does it a few times, and starts it for two commands.
"""

import hashlib
import os
import random
import re
import shlex
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import pytest

from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES, read_checkpoints
from storage_core.filenames import LOCK_FILE, META_PROPERTIES_FILE
from storage_core.roots.broker import BrokerRoot
from tests.crash.stopped_command import StoppedCommand
from tests.kit.compare import read_tree
from tests.oracle.broker_clients import Message, Producer, Topic, consume_topics, create_topics
from tests.oracle.cluster import CONTROLLER_ID, NODE_IDS, Cluster

ROUNDS: Final = int(os.environ.get("PYLOG_RESCUE_ROUNDS", "0"))
SEED: Final = int(os.environ.get("PYLOG_RESCUE_SEED", "1"))
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(900 + 180 * ROUNDS, method="thread"),
]
_FEW: Final = 2
_PARTITIONS: Final = 3
_RECORDS: Final = 60
_OLD_CLUSTER: Final = "OldClusterOldClusterOw"
_CONFIG: Final = {"segment.bytes": "1048576"}
_TOPICS: Final = {
    name: Topic(partitions=_PARTITIONS, config=_CONFIG, replicas=len(NODE_IDS))
    for name in ("kept", "paid")
}
_UNFINISHED: Final = re.compile(r"-delete$|\.tmp$|^pylog-|\.cleaned$|\.swap$|\.deleted$")


class Lab:
    """A stopped cluster of three brokers and a controller, which can be made as it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "lab"
        self._originals = folder / "originals"
        self._started: set[str] = set()
        self.command = StoppedCommand(folder / "control", self.folder)
        self.cluster = Cluster(self.folder, has_own_controller=True)
        self.disks = [self.cluster.node(node).log_directory for node in NODE_IDS]
        self.controller = self.cluster.controller.log_directory
        self.trash = self.folder / "trash"
        self.plan = self.folder / "plan.json"
        self.source = self.folder / "old"

    @property
    def directories(self) -> list[Path]:
        return [*self.disks, self.controller]

    def make(self) -> None:
        """Fill the first topic; the second one stays empty."""
        self.cluster.format()
        self.cluster.start()
        servers = self.cluster.bootstrap_servers
        create_topics(servers, _TOPICS)
        with Producer(servers, {"batch.size": "65536"}) as producer:
            for number in range(_RECORDS):
                key = b"%d" % number
                producer.send(Message(topic="kept", key=key, value=key * 60_000))
                if number % 6 == 5:
                    producer.flush()
        self.cluster.wait_until_in_sync(list(_TOPICS))
        for number in range(_PARTITIONS):
            self.cluster.wait_until_equal("kept", number)
        self.records = self.read()["kept"]
        for node in NODE_IDS:
            self.cluster.node(node).stop()
        self.stop()
        for directory in self.directories:
            shutil.copytree(directory, self._originals / directory.relative_to(self.folder))

    def reset(self) -> None:
        """Make everything as it was when the cluster was stopped."""
        for directory in self.directories:
            shutil.rmtree(directory)
            shutil.copytree(self._originals / directory.relative_to(self.folder), directory)
        for path in (self.trash, self.source):
            shutil.rmtree(path, ignore_errors=True)
        self.plan.unlink(missing_ok=True)

    def read(self) -> dict[str, set[bytes | None]]:
        consumed = consume_topics(
            self.cluster.bootstrap_servers, dict.fromkeys(_TOPICS, _PARTITIONS)
        )
        return {
            topic: {
                record.key
                for (name, _), each in consumed.items()
                if name == topic
                for record in each
            }
            for topic in _TOPICS
        }

    def stop(self) -> None:
        for node in (*NODE_IDS, CONTROLLER_ID):
            self.cluster.node(node).kill()

    def left(self) -> list[str]:
        """Return what no command may leave in a log directory, or beside it."""
        return [
            str(path.relative_to(self.folder))
            for directory in self.directories
            for path in (*directory.iterdir(), *directory.glob("*/*"), *directory.parent.iterdir())
            if _UNFINISHED.search(path.name)
        ]

    def entries(self) -> list[dict[str, dict[str, int]]]:
        """Return the entries of all checkpoints of each disk."""
        return [
            {
                name: {str(partition): offset for partition, offset in each.items()}
                for name, each in read_checkpoints(
                    BrokerRoot(disk), CHECKPOINT_FILES
                ).entries.items()
                if each
            }
            for disk in self.disks
        ]

    def logs(self) -> list[dict[str, bytes]]:
        """Return the files of the partitions of each disk."""
        return [
            {name: content for name, content in read_tree(disk).items() if "/" in name}
            for disk in self.disks
        ]

    def state(self) -> str:
        """Return a digest of all files of the log directories."""
        digest = hashlib.sha256()
        for directory in self.directories:
            for name, content in sorted(read_tree(directory).items()):
                if Path(name).name != LOCK_FILE:
                    digest.update(f"{directory} {name} {len(content)}".encode())
                    digest.update(content)
        return digest.hexdigest()

    def check_start(self, rescue: "Rescue", *, is_undone: bool) -> bool:
        """Start the cluster: all replicas join, and consumers get what they are owed.

        Returns:
            False if it has been started on the same bytes before.
        """
        state = self.state()
        if state in self._started:
            return False
        self._started.add(state)
        self.cluster.start()
        self.cluster.wait_until_in_sync(list(_TOPICS))
        got = self.read()
        self.stop()
        if not (is_undone and rescue.is_damaged_before):
            assert got["kept"] == self.records
        assert got["paid"] == (self.records if rescue.fills_paid and not is_undone else set())
        strays = [str(path) for disk in self.disks for path in disk.glob("*-stray")]
        assert strays == []
        return True


class Rescue(ABC):
    """A command that is killed."""

    has_undo: ClassVar[bool] = True  # whether something takes it back
    fills_paid: ClassVar[bool] = False  # whether the second topic gets the records of the first
    is_damaged_before: ClassVar[bool] = False  # whether a disk has damage that an undo brings back
    starts: ClassVar[bool] = False  # whether the cluster is started in the usual tests

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @abstractmethod
    def begin(self) -> None:
        """Make the situation."""

    @abstractmethod
    def words(self) -> list[str]:
        """Return the command that is killed."""

    def repeat(self) -> str:
        """Bring it to its end after a kill; return what that says."""
        return self.lab.command.run(self.words())

    def undo(self) -> None:
        """Take it back after a kill."""
        raise NotImplementedError

    def undo_run(self) -> None:
        """Undo what is in the trash; a run that was killed before it began kept nothing."""
        trash = self.lab.trash
        runs = (
            [path.name for path in trash.iterdir() if (path / "run.json").exists()]
            if trash.exists()
            else []
        )
        for run in runs:
            self.lab.command.run(["undo", run, "--trash", str(self.lab.trash)])


class Transplanted(Rescue):
    fills_paid = True
    starts = True

    def begin(self) -> None:
        shutil.copytree(self.lab.disks[0], self.lab.source)
        shutil.rmtree(self.lab.source / CLUSTER_METADATA_DIRECTORY)
        properties = self.lab.source / META_PROPERTIES_FILE
        text = properties.read_text()
        properties.write_text(re.sub(r"cluster\.id=.*", f"cluster.id={_OLD_CLUSTER}", text))

    def words(self) -> list[str]:
        targets = [word for disk in self.lab.disks for word in ("--to", str(disk))]
        words = ["transplant", str(self.lab.source), "--role", "broker", "--topics", "kept"]
        return [*words, "--map", "kept=paid", *targets, "--trash", str(self.lab.trash)]

    def undo(self) -> None:
        self.undo_run()


class Healed(Rescue):
    starts = True
    is_damaged_before = True

    def begin(self) -> None:
        for number in range(_PARTITIONS):
            log = min((self.lab.disks[0] / f"kept-{number}").glob("*.log"))
            content = bytearray(log.read_bytes())
            start = len(content) // 2
            content[start : start + 40] = b"\x5a" * 40
            log.write_bytes(content)
        self._make_plan()

    def _make_plan(self) -> None:
        damaged, *donors = self.lab.disks
        words = [word for donor in donors for word in ("--donor", str(donor))]
        self.lab.command.run(
            ["heal", str(damaged), *words, "--role", "broker", "--plan-out", str(self.lab.plan)]
        )

    def words(self) -> list[str]:
        return ["apply", str(self.lab.plan), "--trash", str(self.lab.trash)]

    def repeat(self) -> str:
        """As the document says: on a new plan."""
        self._make_plan()
        return super().repeat()

    def undo(self) -> None:
        self.undo_run()


def empty(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


class WithWayBack(Rescue):
    """A command that prints what takes it back."""

    def undo(self) -> None:
        """Do what the repeated command prints; the directory is as it was."""
        said = self.repeat()
        (line,) = (line for line in said.splitlines() if line.startswith("rm -r "))
        for path in shlex.split(line)[2:]:
            shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()
        assert {path.name for path in self.lab.controller.iterdir()} <= {".lock"}
        self.repeat()


class Promoted(WithWayBack):
    def begin(self) -> None:
        empty(self.lab.controller)

    def words(self) -> list[str]:
        into = f"{CONTROLLER_ID}={self.lab.controller}"
        return ["metadata", "promote", *map(str, self.lab.disks), "--into", into]


class Rebuilt(WithWayBack):
    release: ClassVar[str] = "4.4"

    def begin(self) -> None:
        empty(self.lab.controller)
        for disk in self.lab.disks:
            shutil.rmtree(disk / CLUSTER_METADATA_DIRECTORY)

    def words(self) -> list[str]:
        into = f"{CONTROLLER_ID}={self.lab.controller}"
        words = ["metadata", "rebuild", *map(str, self.lab.disks), "--role", "broker"]
        return [*words, "--into", into, "--release-version", self.release, "--assume-defaults", "*"]


class RebuiltForEarlier(Rebuilt):
    """Without a log: the file beside it alone."""

    release = "4.2"


class Adopted(Rescue):
    has_undo = False

    def begin(self) -> None:
        for disk in self.lab.disks[:2]:
            for log in disk.glob("kept-*"):
                log.rename(disk / f"{log.name}.{'0' * 31}{log.name[-1]}-stray")

    def words(self) -> list[str]:
        return ["metadata", "adopt", *map(str, self.lab.disks), "--role", "broker"]


def differences(disks: list[dict[str, bytes]], others: list[dict[str, bytes]]) -> list[str]:
    """Return the files that are not the same."""
    return [
        f"{number}: {name}"
        for number, (one, other) in enumerate(zip(disks, others, strict=True))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


@pytest.fixture(scope="module")
def lab(kafka_jvm, tmp_path_factory) -> Iterator[Lab]:
    del kafka_jvm
    lab = Lab(tmp_path_factory.mktemp("rescues"))
    with lab.cluster, lab.command:
        lab.make()
        yield lab


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [Transplanted, Healed, Promoted, Rebuilt, RebuiltForEarlier, Adopted]
)
def test_a_killed_rescue_is_done_by_a_repeat_and_taken_back_by_an_undo(lab: Lab, kind):
    rescue: Rescue = kind(lab)
    lab.reset()
    rescue.begin()
    before = lab.logs(), lab.entries()
    lab.command.run(rescue.words())
    points = 2 * len(lab.command.changes)
    after = lab.entries()
    count = -(-ROUNDS // 5) if ROUNDS else _FEW
    chosen = random.Random(f"{SEED} {kind.__name__}").choices(range(points), k=count)
    for number, stop_at in enumerate(chosen):
        lab.reset()
        rescue.begin()
        lab.command.run(rescue.words(), stop_at=stop_at)
        where = lab.command.changes[-1:]
        is_undone = rescue.has_undo and number % 2 == 1
        rescue.undo() if is_undone else rescue.repeat()
        said = f"{kind.__name__}: killed at {stop_at} of {points}, {where}, undone: {is_undone}\n"
        sys.stdout.write(said)
        assert lab.left() == [], said
        if is_undone and not isinstance(rescue, WithWayBack):
            assert differences(before[0], lab.logs()) == [], said
            assert lab.entries() == before[1], said
        else:
            assert lab.entries() == after, said
        if ROUNDS or (rescue.starts and number == count - 1):
            has_started = lab.check_start(rescue, is_undone=is_undone)
            sys.stdout.write("started\n" if has_started else "the same state has started before\n")
