"""A real broker, killed under load, recovered by us, started again: it recovers nothing itself."""

import json
import time
from dataclasses import dataclass

import pytest

from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.recover.waves import RecoveryStages
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.oracle.broker import Broker, BrokerFailure, new_broker, repairs_in
from tests.oracle.broker_clients import Topic, consume_topics, create_topics
from tests.oracle.jvm import java, java_file
from tests.oracle.load import Load, Sent, end_open_transactions
from tests.pylog_spark.crashed_roots import crashed_directory

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.spark,
    pytest.mark.usefixtures("kafka_jvm"),
    pytest.mark.timeout(600, method="thread"),
]

PARTITIONS = 3
TOPICS = {"orders": PARTITIONS, "payments": PARTITIONS}
TRANSACTIONAL_IDS = ["billing-1", "billing-2"]
# Segments that roll all the time, and side files that grow with them.
CONFIG = {"internal.segment.bytes": "20000", "index.interval.bytes": "500"}
# Of the state of transactions; nobody commits offsets.
INTERNAL_PARTITIONS = 2
# It is killed once so many records are acknowledged; some take long on a busy machine.
ENOUGH_RECORDS = 8_000
LOAD_SECONDS = 60
DROPPED_MARKERS = "these partitions are likely deleted already"


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A log directory whose broker was killed.

    broker: not running; sent: what its clients know; refused: what a recovery said that was tried
    while it ran.
    """

    broker: Broker
    sent: Sent
    refused: tuple[int, str]
    pid: int


@pytest.fixture(scope="module")
def killed(kafka_jvm, spark, pylog, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    with new_broker(folder) as broker:
        topic = Topic(partitions=PARTITIONS, config=CONFIG)
        create_topics(broker.bootstrap_servers, dict.fromkeys(TOPICS, topic))
        refused = pylog("recover", broker.log_directory, "--role", "broker")
        with Load(
            broker.bootstrap_servers,
            idempotent="orders",
            transactional="payments",
            partitions=PARTITIONS,
            transactional_ids=TRANSACTIONAL_IDS,
        ) as load:
            deadline = time.monotonic() + LOAD_SECONDS
            while load.sent.count < ENOUGH_RECORDS and time.monotonic() < deadline:
                time.sleep(0.1)
            pid = broker.pid
            broker.kill()
            sent = load.stop(at_once=True)
        yield Killed(broker=broker, sent=sent, refused=(refused.exit_code, refused.stderr), pid=pid)


@pytest.mark.thorough
@pytest.mark.item("DIR-02")
def test_a_running_broker_keeps_us_out_and_is_named(killed):
    status, errors = killed.refused
    assert status == 3
    assert "LOG_DIRECTORY_IN_USE" in errors
    assert f"process {killed.pid}" in " ".join(errors.split())


@pytest.mark.thorough
@pytest.mark.item("DIR-02")
def test_a_broker_does_not_start_while_we_hold_its_directory(killed):
    data = killed.broker.log_directory
    with LogDirectoryLock(data):
        # Somebody else of this process may look at the file: the lock is not lost by it.
        (data / ".lock").open("rb").close()
        with pytest.raises(BrokerFailure, match=r"Failed to acquire lock on file \.lock"):
            killed.broker.start()


@pytest.mark.thorough
@pytest.mark.item("DIR-14", "DIR-03", "REC-21")
def test_after_our_recovery_the_broker_recovers_nothing_and_serves_what_was_acknowledged(
    killed, pylog
):
    broker, sent = killed.broker, killed.sent
    data = broker.log_directory
    assert not (data / CLEAN_SHUTDOWN_FILE).exists()
    assert sent.count >= ENOUGH_RECORDS / 10
    segments = len(list(data.glob("*/*.log")))
    recovered = pylog("recover", data, "--role", "broker", "--output", "json")
    assert recovered.exit_code == 0, recovered.stdout + recovered.stderr
    lines = [json.loads(line) for line in recovered.stdout.splitlines()]
    rows = [line for line in lines if line["type"] == "result"]
    done = [row for row in rows if row["status"] == "done"]
    assert len(done) == 2 * PARTITIONS + INTERNAL_PARTITIONS == len(rows) - 1
    assert segments > 30
    assert (data / CLEAN_SHUTDOWN_FILE).read_bytes() == b'{"version":0,"brokerEpoch":-1}'

    before = len(broker.log_lines())
    broker.start()
    said = broker.log_lines()[before:]
    skipped = f"Skipping recovery of {len(done)} logs from {data}"
    assert [line for line in said if skipped in line]
    assert repairs_in(said) == []
    end_open_transactions(broker.bootstrap_servers, TRANSACTIONAL_IDS)
    # A coordinator that does not see the leaders yet takes their partitions for deleted, and never
    # writes the markers of a commit that it has promised: no committed reader gets past it then.
    is_ended = not [line for line in broker.log_lines()[before:] if DROPPED_MARKERS in line]
    got = consume_topics(broker.bootstrap_servers, TOPICS, read_committed=is_ended)
    assert sent.problems(got, is_committed=is_ended) == []
    broker.stop()


@pytest.mark.thorough
@pytest.mark.item("DIR-02")
def test_a_broker_cannot_take_the_lock_in_the_middle_of_a_recovery(spark, tmp_path, monkeypatch):
    root = crashed_directory(tmp_path / "log", ["clean-headers-none-s101"])
    lock_file = root.path / ".lock"
    run, tried = RecoveryStages.work, []

    def tempted(self, *arguments, **named):
        # Files of a lock that this process held itself would lose it by being closed here.
        lock_file.open("rb").close()
        for _ in range(2):
            brokers = java("org.apache.kafka.server.util.FileLock")(java_file(lock_file))
            tried.append(bool(brokers.tryLock()))
            brokers.unlockAndClose()
        return run(self, *arguments, **named)

    monkeypatch.setattr(RecoveryStages, "work", tempted)
    assert recover(spark, [root.path], root.options).summary.done == 1
    assert tried == [False, False]
    assert not lock_file.exists()
