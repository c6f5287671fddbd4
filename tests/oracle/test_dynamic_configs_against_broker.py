"""The dynamic configs that a real broker applies at its start, and those that it ignores."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    read_cluster_metadata,
)
from storage_core.catalog.metadata_image import ResourceType
from storage_core.catalog.topic_catalog import build_topic_catalog
from storage_core.config.broker_config import spell_directories
from storage_core.config.log_config import TOPIC_KEYS
from storage_core.config.values import render
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.start_accidents import Disks, append_metadata, config_record
from tests.oracle.started_broker import DEFAULTS, Starter

pytestmark = pytest.mark.oracle

ALL, NODE = "", "1"
YEARS = {"log.retention.ms": "777777777777"}
BYTES = {"log.retention.bytes": "99999999999"}
# By case: dynamic configs of all nodes, of the node, and whether the second disk is taken away.
CASES: dict[str, tuple[dict[str, str], dict[str, str], bool]] = {
    "valid": (YEARS, BYTES, False),
    "default out of range": ({"log.segment.bytes": "1024", **YEARS}, BYTES, False),
    "own malformed": (YEARS, {"log.retention.ms": "x", **BYTES}, False),
    "default contradicts": ({"log.roll.ms": "0", **YEARS}, BYTES, False),
    "own contradicts": (YEARS, {"log.roll.ms": "0", **BYTES}, False),
    "own cordons": (YEARS, {"cordoned.log.dirs": "{last}", **BYTES}, False),
    "own cordons a disk that is gone": (YEARS, {"cordoned.log.dirs": "{last}", **BYTES}, True),
    "all cordon a disk that is gone": ({"cordoned.log.dirs": "{last}", **YEARS}, BYTES, True),
    "buffer too small": ({"log.cleaner.dedupe.buffer.size": "1", **YEARS}, {}, False),
    "no limit": ({"log.retention.ms": "-7"}, {}, False),
}
# Each starts a broker; the others are in the long run.
FEW = ("default out of range", "own cordons a disk that is gone")


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as starter:
        yield starter


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [pytest.param(each, marks=[] if each in FEW else pytest.mark.long) for each in CASES],
)
def test_a_broker_applies_the_dynamic_configs_that_count_here(starter, tmp_path: Path, case: str):
    of_all, of_node, is_gone = CASES[case]
    disks = Disks(unpack_archive(GOLDEN / "two-disks" / "before.tar.gz", tmp_path))
    last = disks.last
    records = [
        config_record(ResourceType.BROKER, name, key, value.format(last=last))
        for name, settings in ((ALL, of_all), (NODE, of_node))
        for key, value in settings.items()
    ]
    append_metadata(disks.first, *records)
    if is_gone:
        last.rename(tmp_path / "gone")
    ours = our_defaults(disks)
    broker = starter.start(disks.roots)
    assert broker.is_up
    assert ours == broker.defaults


def our_defaults(disks: Disks) -> Mapping[str, str]:
    catalog = build_topic_catalog(
        metadata=read_cluster_metadata(disks.first / CLUSTER_METADATA_DIRECTORY),
        node_id=1,
        assume_defaults=["*"],
        directories=spell_directories(map(str, disks.roots)),
    )
    config = catalog.config_for("any")
    return {key: render(getattr(config, TOPIC_KEYS[key].attribute)) for key in DEFAULTS}
