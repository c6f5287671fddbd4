"""``docs/formats.md``: the layouts and names that it shows are those of the code."""

import re
from pathlib import Path

import numpy as np

from storage_core import filenames
from storage_core.formats.batch_v2 import BATCH_HEADER, HEADER_BYTES
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
)

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "formats.md").read_text()
FIELD = re.compile(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", re.MULTILINE)


def test_the_header_of_a_batch_is_shown_field_by_field():
    shown = [(int(at), int(size), name) for at, size, name in FIELD.findall(TEXT)]
    fields = BATCH_HEADER.fields
    assert fields is not None
    assert shown == [(fields[name][1], fields[name][0].itemsize, name) for name in fields]
    assert f"header, {HEADER_BYTES} bytes" in TEXT


def test_entries_of_indexes_have_the_sizes_that_are_said():
    def sizes(entry: np.dtype) -> list[int]:
        return [field[0].itemsize for field in (entry.fields or {}).values()]

    assert sizes(OFFSET_INDEX_ENTRY) == [4, 4]
    assert "(relative offset, position): 4 + 4 bytes" in TEXT
    assert sizes(TIME_INDEX_ENTRY) == [8, 4]
    assert "relative offset): 8 + 4 bytes" in TEXT
    assert f"one aborted transaction: {TXN_INDEX_ENTRY.itemsize} bytes" in TEXT


def test_every_file_of_a_directory_and_of_a_partition_is_named():
    names = {
        value
        for name, value in vars(filenames).items()
        if name.endswith(("_FILE", "_SUFFIX")) and isinstance(value, str)
    }
    elsewhere = {
        filenames.ANCIENT_SUFFIX,  # of Kafka 0.7
        filenames.CHECKPOINT_DELETED_SUFFIX,  # of the metadata's own snapshots
        filenames.CLUSTER_SNAPSHOT_SUFFIX,
        filenames.BOOTSTRAP_SNAPSHOT_FILE,
        filenames.QUORUM_STATE_FILE,
        filenames.TEMPORARY_SUFFIX,
        filenames.COMPANIONS_SUFFIX,  # of managed roots: docs/object-storage.md
        filenames.LEASE_FILE,
        filenames.MANAGED_ROOT_FILE,
        filenames.PURGED_FILE,
        filenames.TOPIC_CONFIGS_FILE,
    }
    assert elsewhere < names
    assert [name for name in names - elsewhere if name not in TEXT] == []
