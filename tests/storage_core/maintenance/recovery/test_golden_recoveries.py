"""Directories that Kafka's own loader repaired, repaired again."""

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, CLUSTER_METADATA_TOPIC
from storage_core.records import reader
from storage_core.records.reader import LEAST_MAPPED_BYTES
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.golden_data import Golden, Side, goldens
from tests.kit.golden_loading import problems_of
from tests.kit.one_partition import recover_partition


@pytest.fixture(autouse=True, params=[LEAST_MAPPED_BYTES, 1], ids=["copied", "mapped"])
def _how_small_windows_are_looked_at(request, monkeypatch):
    monkeypatch.setattr(reader, "LEAST_MAPPED_BYTES", request.param)


def name_of(golden: Golden) -> str:
    return golden.name


@pytest.mark.item("REC-01", "REC-10", "REC-11", "REC-21", "IDX-20")
@pytest.mark.parametrize(
    "golden", [*goldens("recover-good*"), *goldens("recover-seqwrap*")], ids=name_of
)
def test_whole_logs_are_rebuilt_as_they_were(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.thorough
@pytest.mark.item("REC-01", "REC-10", "REC-14", "REC-21", "REC-27")
@pytest.mark.parametrize("name", ["broker-dir", "broker-dir-unclean"])
def test_every_log_of_a_broker_ends_by_its_checkpoints_as_kafka_left_it(name, tmp_path):
    golden = Golden(name)
    root = golden.unpack(tmp_path / "ours")
    kafkas = golden.unpack(tmp_path / "kafkas", Side.AFTER)
    is_closed = (root / CLEAN_SHUTDOWN_FILE).exists()
    assert is_closed == (name == "broker-dir")
    for partition, case in golden.case["expected"].items():
        if partition.startswith(CLUSTER_METADATA_TOPIC):
            continue  # a replicated log of another kind, which no job touches
        expected = case["expected"]
        result = recover_partition(
            root / partition,
            config=LogConfig.from_topic_overrides(case["config"]),
            cleaner=CleanerConfig(),
            now_ms=golden.case["clock_ms"],
            recovery_point=case["recovery_point_checkpoint"] or 0,
            log_start_offset=case["log_start_checkpoint"] or 0,
            clean_shutdown=is_closed,
        )
        ours, theirs = read_tree(root / partition), read_tree(kafkas / partition)
        assert compare_partitions(theirs, ours, Exactness.BYTES) == [], partition
        assert result.log_end_offset == expected["leo"]
        assert result.log_start_offset == expected["log_start"]
        assert result.recovery_point == expected["recovery_point"]


@pytest.mark.sampled(23)
@pytest.mark.item("FLT-01", "REC-13")
@pytest.mark.parametrize(
    "golden", [*goldens("recover-torn*"), *goldens("recover-tail*")], ids=name_of
)
def test_a_torn_or_padded_tail_is_cut(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.sampled(23)
@pytest.mark.item("REC-12", "REC-17")
@pytest.mark.parametrize(
    "golden",
    [
        *goldens("recover-flip*"),
        *goldens("recover-duplicate*"),
        *goldens("recover-offset*"),
        *goldens("recover-odd*"),
    ],
    ids=name_of,
)
def test_of_what_a_changed_byte_leads_to_only_the_envelope_counts(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.item("REC-14", "REC-15")
@pytest.mark.parametrize(
    "golden", [*goldens("recover-earlier*"), *goldens("recover-middle*")], ids=name_of
)
def test_damage_below_the_recovery_point_stays_and_above_it_ends_the_log(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.sampled(23)
@pytest.mark.item("REC-02", "REC-03", "REC-04", "REC-05", "REC-06")
@pytest.mark.parametrize("golden", goldens("leftover-*"), ids=name_of)
def test_a_swap_that_was_interrupted_ends_as_the_old_or_the_new_log(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.sampled(33)
@pytest.mark.item("REC-07", "REC-08", "REC-09", "IDX-17")
@pytest.mark.parametrize(
    "golden",
    [
        *goldens("*-index-*"),
        *goldens("*-timeindex-*"),
        *goldens("*-txnindex-*"),
        *goldens("*-all-missing-*"),
        *goldens("load-orphan-indexes*"),
    ],
    ids=name_of,
)
def test_missing_and_wrong_indexes_are_rebuilt_where_kafka_notices(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.item("REC-19", "REC-20")
@pytest.mark.parametrize(
    "golden",
    [
        *goldens("load-logstart-*"),
        *goldens("recover-logstart-*"),
        *goldens("truncate-*logstart-*"),
        *goldens("recover-empty-*"),
    ],
    ids=name_of,
)
def test_a_log_below_its_start_or_without_segments_begins_anew(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.item("REC-18", "REC-25")
@pytest.mark.parametrize("golden", goldens("overflow-*-[lr]*"), ids=name_of)
def test_a_segment_whose_offsets_do_not_fit_is_split(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.sampled(34)
@pytest.mark.item("CKP-12", "CKP-13", "PRD-12", "REC-23", "REC-27", "REC-28")
@pytest.mark.parametrize(
    "golden",
    [
        *goldens("*-snapshot-*"),
        *goldens("load-epochs-*"),
        *goldens("recover-epochs-*"),
        *goldens("load-expired*"),
    ],
    ids=name_of,
)
def test_snapshots_and_epochs_are_kept_dropped_and_written_as_kafka_does(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []


@pytest.mark.parametrize(
    "golden",
    [*goldens("load-legacy*"), *goldens("recover-legacy*"), *goldens("recover-upgrade*")],
    ids=name_of,
)
def test_logs_of_old_message_formats_are_loaded(golden, tmp_path):
    assert problems_of(golden, tmp_path) == []
