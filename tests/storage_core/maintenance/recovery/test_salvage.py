"""What is set aside before it is cut: raw, and as a log that opens."""

import pytest

from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import BATCH_LENGTH_AT
from storage_core.log.log_loader import load_log
from storage_core.maintenance.recovery.partition import plan_recovery
from storage_core.maintenance.recovery.salvage import count_lost_records, salvage_cuts
from storage_core.store.local import LocalStore
from tests.storage_core.maintenance.recovery.test_plan import SETTINGS, damage_batch, write_log


def salvage_of(directory, target):
    store = LocalStore(directory)
    log = plan_recovery(store, **SETTINGS)
    return log, salvage_cuts(
        store,
        log.repairs.cuts,
        target / directory.name,
        index_interval_bytes=4096,
        max_index_bytes=10 << 20,
    )


@pytest.mark.item("FLT-02")
def test_whole_batches_behind_a_bad_one_open_as_a_log_of_their_own(tmp_path):
    directory = write_log(tmp_path / "t-0", 0, 10, 20, count=2)
    whole = (directory / log_file(20)).read_bytes()
    position = damage_batch(directory / log_file(10), 0)
    log, salvage = salvage_of(directory, tmp_path / "salvage")
    place = tmp_path / "salvage" / "t-0"
    assert salvage.raw_bytes == log.repairs.truncated_bytes
    assert (salvage.segments, salvage.records) == (2, 15)
    opened = load_log(LocalStore(place), **SETTINGS)
    assert [segment.base_offset for segment in opened.segments] == [15, 20]
    assert opened.log_end_offset == 30
    assert (place / log_file(20)).read_bytes() == whole
    raw = (place / f"cut-{10:020d}-{position}.raw").read_bytes()
    assert raw == (directory / log_file(10)).read_bytes()[position:]


def test_batches_behind_one_that_is_too_short_are_found_by_its_length(tmp_path):
    directory = write_log(tmp_path / "t-0", 0)
    path = directory / log_file(0)
    batches = path.read_bytes()
    short = bytes(BATCH_LENGTH_AT) + (5).to_bytes(4, "big") + b"short"
    path.write_bytes(short + batches)
    _, salvage = salvage_of(directory, tmp_path / "salvage")
    assert (salvage.raw_bytes, salvage.records) == (len(short + batches), 10)
    assert (tmp_path / "salvage" / "t-0" / log_file(0)).read_bytes() == batches


def test_batches_behind_noise_are_found_byte_by_byte(tmp_path):
    """The header that says where the next one begins is gone."""
    directory = write_log(tmp_path / "t-0", 0)
    path = directory / log_file(0)
    batches = path.read_bytes()
    path.write_bytes(b"\xa7" * 300 + batches)
    log, salvage = salvage_of(directory, tmp_path / "salvage")
    assert sum(count_lost_records(LocalStore(directory), cut) for cut in log.repairs.cuts) == 10
    assert (salvage.raw_bytes, salvage.records) == (300 + len(batches), 10)
    assert (tmp_path / "salvage" / "t-0" / log_file(0)).read_bytes() == batches


def test_a_second_attempt_replaces_what_the_first_one_set_aside(tmp_path):
    directory = write_log(tmp_path / "t-0", 0, 10)
    damage_batch(directory / log_file(0), 1)
    first = salvage_of(directory, tmp_path / "salvage")
    assert salvage_of(directory, tmp_path / "salvage") == first


def test_bytes_that_are_no_batches_are_kept_raw(tmp_path):
    directory = write_log(tmp_path / "t-0", 0)
    with (directory / log_file(0)).open("ab") as file:
        file.write(bytes(range(200)))
    _, salvage = salvage_of(directory, tmp_path / "salvage")
    assert (salvage.raw_bytes, salvage.segments, salvage.records) == (200, 0, 0)
