"""Timestamps below -1: where Kafka's cleaner gives a log up, and what it would have made of it.

Kafka's builder of batches throws at such a record, and the cleaner ends. What would come without
that is what Kafka's own code makes where this check alone is taken out: two bytes a class, in a JVM
of its own. That JVM writes the random logs, too.
"""

import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings

from storage_core.errors import NegativeTimestampError
from tests.kit.compare import Exactness, read_tree
from tests.oracle.jars import JARS_VARIABLE, kafka_jars
from tests.oracle.jvm import QUICK, start_jvm
from tests.oracle.kafka import Kafka
from tests.oracle.log_writer import Append
from tests.oracle.ours import clean_by_us, compare_round
from tests.oracle.random_logs import (
    EXAMPLES,
    LogPlan,
    against_kafka,
    log_plans,
    scratch_folder,
)
from tests.oracle.rounds import PlayedRound, play, play_task
from tests.oracle.test_legacy_against_kafka import old_plans

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

# What writes a record, a batch, a message of an older format.
CHECKING: Final = [
    f"org/apache/kafka/common/record/internal/{name}.class"
    for name in ("MemoryRecordsBuilder", "DefaultRecordBatch", "LegacyRecord")
]
# lload TIMESTAMP; lconst_0; lcmp; ifge AFTER; lload TIMESTAMP; ldc2_w -1; lcmp; ifeq AFTER; new
CHECK: Final = re.compile(rb"\x16(.)(\x09\x94\x9c..\x16\1\x14..\x94\x99..\xbb)", flags=re.DOTALL)
# Zero takes the place of the timestamp: lconst_0; nop.
ZERO: Final = b"\x09\x00"
SHARES: Final = (0.0, 0.05, 0.5, 1.0)
GIVEN_UP: Final = ("Invalid negative timestamp", "Invalid message timestamp")

Play = Callable[[LogPlan, Path], list[PlayedRound]]


def with_negative_timestamps(plan: LogPlan) -> LogPlan:
    """Have some batches of a plan with no timestamp below -1, some with a few, some with all."""

    def changed(step: object) -> object:
        if not isinstance(step, Append):
            return step
        share = SHARES[step.contents.seed % len(SHARES)]
        return replace(step, contents=replace(step.contents, negative=share))

    rounds = [replace(each, steps=tuple(map(changed, each.steps))) for each in plan.rounds]
    return replace(plan, rounds=tuple(rounds))


def write_jars_without_the_check(folder: Path) -> None:
    """Lay links to Kafka's jars into a folder, and before them one with the changed classes."""
    for jar in kafka_jars():
        (folder / jar.name).symlink_to(jar)
    (clients,) = folder.glob("kafka-clients-*.jar")
    first = folder / "0-without-the-check.jar"
    with zipfile.ZipFile(clients) as jar, zipfile.ZipFile(first, "w") as changed_jar:
        for name in CHECKING:
            changed, count = CHECK.subn(ZERO + rb"\2", jar.read(name))
            assert count == 1, f"{name} checks timestamps otherwise"
            changed_jar.writestr(name, changed)


def play_whole(plan: LogPlan, scratch: Path) -> list[PlayedRound]:
    """Play a plan to its end, and keep what Kafka left after each round."""
    start_jvm(options=QUICK)
    rounds = []
    for number, played in enumerate(play(plan, scratch)):
        after = scratch / f"after-{number}" / played.after.name
        shutil.copytree(played.after, after)
        rounds.append(replace(played, after=after))
    return rounds


@pytest.fixture(scope="module")
def play_unchecked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Let Kafka play plans, without its check, in a process of its own."""
    folder = tmp_path_factory.mktemp("jars")
    write_jars_without_the_check(folder)
    with (
        pytest.MonkeyPatch.context() as patch,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
    ):
        patch.setenv(JARS_VARIABLE, os.fspath(folder))
        yield lambda plan, scratch: process.submit(play_whole, plan, scratch).result()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("plans", "exactness"),
    [
        pytest.param(log_plans(compressed=False), Exactness.BYTES, id="plain"),
        pytest.param(log_plans(compressed=True), Exactness.RECORDS, id="compressed"),
        pytest.param(old_plans(("none",)), Exactness.BYTES, id="older formats"),
        pytest.param(old_plans(("none", "gzip", "snappy", "lz4")), Exactness.RECORDS, id="both"),
    ],
)
def test_a_log_is_given_up_where_kafka_does_or_kept_as_it_would(play_unchecked, plans, exactness):
    given_up = 0

    @settings(against_kafka, max_examples=max(1, EXAMPLES // 10))
    @given(plan=plans.map(with_negative_timestamps))
    def compare(plan: LogPlan) -> None:
        nonlocal given_up
        given_up += compare_every_round(play_unchecked, plan, exactness)

    compare()
    assert given_up > 0


def compare_every_round(play_unchecked: Play, plan: LogPlan, exactness: Exactness) -> int:
    """Compare both answers of every round, and return how many Kafka itself gave up."""
    given_up = 0
    with scratch_folder() as scratch:
        for number, unchecked in enumerate(play_unchecked(plan, scratch)):
            # Kafka as it is, on a copy of what it wrote.
            directory = scratch / f"checked-{number}" / unchecked.before.name
            shutil.copytree(unchecked.before, directory)
            copy = scratch / f"copy-{number}" / unchecked.before.name
            kafka = Kafka(now_ms=unchecked.task.now_ms)
            checked = play_task(kafka, directory, unchecked.task, before=copy)
            if checked.failure and checked.failure.message.startswith(GIVEN_UP):
                given_up += 1
                refuse_it(copy, checked)
            else:
                compare_round(checked, exactness)
            kept = replace(unchecked.task, keeps_negative_timestamps=True)
            compare_round(replace(unchecked, task=kept), exactness)
    return given_up


def refuse_it(directory: Path, checked: PlayedRound) -> None:
    before = read_tree(directory)
    with pytest.raises(NegativeTimestampError):
        clean_by_us(directory, checked.task)
    assert read_tree(directory) == before
