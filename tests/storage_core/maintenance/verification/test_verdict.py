"""What to do, as a function of what was found."""

import dataclasses

import pytest

from storage_core.catalog.roles import Role
from storage_core.checkpoint.lock import LockState
from storage_core.maintenance.verification.observed_root import Start
from storage_core.maintenance.verification.verdict import (
    ASSUMED_BYTES_PER_SECOND,
    BROKER_BYTES_PER_SECOND,
    LEAST_MEASURED_BYTES,
    LOCAL_START_SECONDS,
    SECONDS_A_SEGMENT,
    SPARK_START_SECONDS,
    Advice,
    PartitionForecast,
    ReadRates,
    RootState,
    Situation,
    Waiting,
    decide,
    forecast_start,
    measure_pace,
    seconds_text,
)

GB = 10**9
ROOT = RootState(
    location="/logs",
    role=Role.BROKER,
    is_clean=False,
    lock=LockState(is_held=False),
    partitions=1,
    size_bytes=GB,
)
PACE = ReadRates(bytes_per_second=0.5e9, is_measured=True, broker_threads=2, our_tasks=8)


def partition(name: str = "t-0", root: str = "/logs", **facts) -> PartitionForecast:
    return PartitionForecast(root=root, name=name, **facts)


def verdict(*partitions: PartitionForecast, root: RootState = ROOT, metadata=None, **found):
    start = dataclasses.replace(forecast_start(partitions, PACE), **(metadata or {}))
    facts = {"fatal": 0, "errors": 0} | found
    return decide(Situation(roots=[root], partitions=partitions, start=start, **facts))


def test_a_start_is_as_slow_as_the_slowest_directory_and_its_biggest_log():
    evenly = [partition(f"t-{n}", read_bytes=10 * GB) for n in range(4)]
    assert forecast_start(evenly, PACE).broker_seconds == pytest.approx(40)
    skewed = [partition(read_bytes=30 * GB), partition("t-1", read_bytes=GB)]
    assert forecast_start(skewed, PACE).broker_seconds == pytest.approx(60)
    two_disks = [partition(read_bytes=30 * GB), partition("t-1", "/other", read_bytes=30 * GB)]
    start = forecast_start(two_disks, PACE)
    assert start.broker_seconds == pytest.approx(60)
    assert start.our_seconds == pytest.approx(SPARK_START_SECONDS + 60 / (0.5 * 8))


def test_a_broker_is_no_faster_than_one_of_its_threads():
    fast = dataclasses.replace(PACE, bytes_per_second=10e9, broker_threads=1)
    start = forecast_start([partition(read_bytes=14 * GB, rebuilt_segments=100)], fast)
    expected = 14e9 / BROKER_BYTES_PER_SECOND + 100 * SECONDS_A_SEGMENT
    assert start.broker_seconds == pytest.approx(expected)


def test_a_rate_counts_only_if_enough_was_read():
    little = measure_pace(
        read_bytes=LEAST_MEASURED_BYTES - 1,
        read_seconds=1.0,
        broker_threads=0,
        our_tasks=0,
        is_local=False,
    )
    assert (little.bytes_per_second, little.is_measured) == (ASSUMED_BYTES_PER_SECOND, False)
    assert (little.broker_threads, little.our_tasks) == (1, 1)
    much = measure_pace(
        read_bytes=10**9, read_seconds=4.0, broker_threads=2, our_tasks=2, is_local=True
    )
    assert (much.bytes_per_second, much.is_measured) == (0.25e9, True)
    starts = (little.our_start_seconds, much.our_start_seconds)
    assert starts == (SPARK_START_SECONDS, LOCAL_START_SECONDS)


def test_a_time_is_told_as_a_person_says_it():
    said = [seconds_text(seconds) for seconds in (0.0, 0.99, 1.2, 119.6, 120.0, 600.0)]
    assert said == [
        *("less than a second", "less than a second", "about 1 second", "about 120 seconds"),
        *("about 2 minutes", "about 10 minutes"),
    ]


def test_nothing_to_recover_is_a_reason_to_start():
    clean = dataclasses.replace(ROOT, is_clean=True)
    found = verdict(partition(), root=clean)
    assert (found.advice, found.headline) == (Advice.START_BROKER, "Just start the broker.")
    assert found.commands == ()


def test_a_disk_without_a_log_may_be_a_new_one():
    empty = dataclasses.replace(ROOT, is_clean=True, partitions=0)
    found = verdict(root=empty)
    assert found.headline == "Just start the broker."
    assert "with the directories of all brokers" in " ".join(found.reasons)


def test_a_broker_that_is_fast_enough_should_just_be_started():
    found = verdict(partition(read_bytes=GB, rebuilt_segments=1, cut_bytes=17))
    assert found.advice is Advice.START_BROKER
    assert "17 bytes" in " ".join(found.reasons)


def test_recovery_pays_where_it_saves_minutes():
    found = verdict(*[partition(f"t-{n}", read_bytes=20 * GB) for n in range(10)])
    assert found.advice is Advice.RECOVER
    assert found.commands == ("pylog recover /logs --role broker --salvage /logs-salvage",)
    assert "3 minutes" in found.reasons[0]


@pytest.mark.parametrize(
    ("facts", "headline", "says"),
    [
        (
            {"cut_records": 1272, "cut_bytes": 3000},
            " and lose 1,272 readable records of t-0; save them first.",
            "1,272 readable records, 3,000 bytes",
        ),
        (
            {"lost_below_high_watermark": 9},
            ", but t-0 would end 9 offsets below the high watermark.",
            "9 offsets below a checkpointed high watermark",
        ),
    ],
)
def test_who_would_lose_records_should_look_first(facts, headline, says):
    found = verdict(partition(**facts), commands=("pylog a",))
    assert found.headline == f"The broker would start{headline}"
    assert found.advice is Advice.LOOK_BEFORE_START
    assert says in " ".join(found.reasons)
    assert found.commands == ("pylog a",)


def test_what_a_start_does_not_mend_is_mended_by_the_plan():
    found = verdict(partition(), errors=2, commands=("pylog a", "pylog b"))
    assert found.advice is Advice.LOOK_BEFORE_START
    assert found.headline == "The broker would start, but 2 errors would remain."
    assert found.reasons[0].startswith("2 findings are errors, listed")
    assert found.commands == ("pylog a", "pylog b")
    many = verdict(partition(), fatal=1, commands=tuple(f"pylog {n}" for n in range(20)))
    assert many.commands == tuple(f"pylog {n}" for n in range(20))


def test_a_tail_that_is_gone_is_not_called_unreadable():
    found = verdict(partition(), errors=1, low_ends=1)
    assert found.advice is Advice.LOOK_BEFORE_START
    assert found.headline == "The broker would start, but 1 log ends below the high watermark."
    [reason] = found.reasons
    assert "acknowledged records are missing" in reason
    assert "look for a backup" in reason
    assert found.commands == ()


@pytest.mark.parametrize(
    ("has_replicas", "says"),
    [
        (
            True,
            "missing after a start: start the other replicas first, so that this broker does",
        ),
        (False, "there is no other replica: look for a backup"),
        (None, "so that this broker does not lead; if there are none, look for a backup"),
    ],
)
def test_other_replicas_are_started_first_where_there_are_any(has_replicas, says):
    found = verdict(partition(lost_below_high_watermark=9), has_replicas=has_replicas)
    [reason] = found.reasons
    assert says in reason


def test_without_the_clusters_metadata_nobody_is_sent_to_a_start():
    """Kafka 4.4, broker and only controller, renames every log to -stray then."""
    lacks = {"has_metadata": False, "lacks_metadata": True}
    found = verdict(partition(), metadata=lacks)
    assert found.advice is Advice.LOOK_BEFORE_START
    assert found.headline.startswith("Do not start yet: no named directory has")
    assert "run again with all of them" in found.reasons[0]
    fetching = verdict(partition(), metadata=lacks, is_only_broker=True)
    assert fetching.advice is Advice.START_BROKER
    assert "fetches the cluster's metadata" in fetching.reasons[-1]
    worse = verdict(partition(), metadata=lacks, fatal=1)
    assert worse.advice is Advice.DO_NOT_START


def test_a_log_behind_a_link_is_a_reason_to_know():
    found = verdict(partition(), partition("t-1", start=Start.UNKNOWN))
    assert found.advice is Advice.START_BROKER
    assert found.reasons[-1] == "pylog follows no links: it did not check 1 log, first t-1"


def test_the_headline_names_who_loses_most_and_counts_the_others():
    lost = [partition(f"t-{n}", cut_records=n) for n in (1, 3, 2)]
    assert "lose 6 readable records of t-3 and 2 more partitions;" in verdict(*lost).headline
    twice = verdict(lost[0], partition("t-1", cut_records=4))
    assert "lose 5 readable records of t-1;" in twice.headline
    assert "lose 1 readable record of t-1;" in verdict(lost[0]).headline
    stopped = verdict(partition(error="x"), lost[1], fatal=1)
    assert stopped.headline.endswith("delete a log, because of 1 partition and 1 fatal finding.")
    assert any("3 readable records" in reason for reason in stopped.reasons)


def test_what_would_stop_a_broker_is_named():
    refused = [partition(f"t-{n}", error="bad index") for n in range(7)]
    found = verdict(*refused, fatal=2)
    assert found.advice is Advice.DO_NOT_START
    assert found.reasons[0] == "t-0: bad index"
    assert found.reasons[-2:] == (
        "and 2 more partitions",
        "first fix 2 fatal findings, listed with the fix for each; then run `pylog doctor` again",
    )


def test_what_keeps_a_recovery_from_beginning_comes_first():
    lost = partition(cut_records=3)
    for found in (
        verdict(lost, hindrance="d1: is a link", commands=("pylog a",)),
        verdict(partition(error="x"), fatal=1, hindrance="d1: is a link", commands=("pylog a",)),
    ):
        assert "refuses these log directories: d1: is a link." in found.reasons[0]
        assert found.commands == ("pylog a",)
    slow = [partition(f"t-{n}", read_bytes=20 * GB) for n in range(10)]
    assert verdict(*slow, hindrance="d1: is a link").commands == ()
    assert verdict(partition(), hindrance="d1: is a link").reasons == verdict(partition()).reasons


def test_the_readable_records_that_the_commands_cut_are_counted():
    found = verdict(partition(), errors=1, planned_cuts={"t-0": 250, "t-1": 3})
    assert found.headline.endswith(
        "1 error would remain; the commands cut 253 readable records of t-0 and 1 more "
        "partition and keep a copy."
    )
    assert (found.cut_records, len(found.reasons)) == (253, 1)
    for worse in (
        verdict(partition("t-1", cut_records=3), planned_cuts={"t-0": 250, "t-1": 3}),
        verdict(partition(error="x"), fatal=1, planned_cuts={"t-0": 253}),
    ):
        assert worse.cut_records == 253
        assert worse.reasons[-1].startswith("the commands cut 253 readable records of t-0")
    [reason] = verdict(partition("t-1", cut_records=3), planned_cuts={"t-1": 3}).reasons
    assert reason.startswith("a start would cut 3 readable records")


def test_cut_records_that_can_go_back_are_told_beside_what_is_worse():
    waiting = [Waiting(folder="/logs-salvage", records=7, logs=1)]
    for found in (
        verdict(partition(), waiting=waiting),
        verdict(partition(cut_records=3), waiting=waiting),
        verdict(partition(error="x"), fatal=1, waiting=waiting),
    ):
        assert "/logs-salvage keeps 7 readable records behind the end of 1 log" in found.reasons[-1]


def test_a_directory_in_use_is_left_alone_whatever_was_found():
    lock = LockState(is_held=True, holder_pid=4711, command="java kafka.Kafka")
    found = verdict(partition(error="x"), root=dataclasses.replace(ROOT, lock=lock), fatal=3)
    assert found.advice is Advice.IN_USE
    assert "process 4711 (java kafka.Kafka)" in found.headline
    unseen = dataclasses.replace(ROOT, lock=LockState(is_held=True))
    assert "another process" in verdict(root=unseen).headline


def test_a_copy_is_whole_or_damaged_and_never_started():
    copy = dataclasses.replace(ROOT, role=Role.MIRROR)
    assert verdict(partition(cut_bytes=9), root=copy).advice is Advice.COPY_WHOLE
    assert verdict(partition(), root=copy, errors=1).advice is Advice.COPY_DAMAGED
    assert verdict(partition(error="x"), root=copy).advice is Advice.COPY_DAMAGED
    empty = dataclasses.replace(copy, partitions=0)
    assert verdict(root=empty).advice is Advice.NO_PARTITION
