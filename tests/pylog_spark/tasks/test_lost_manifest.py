"""A managed partition of which all is there but the manifest: no run may pass it by."""

from dataclasses import replace

import pyarrow as pa
import pytest

from pylog_spark.operations.materialize_task import MaterializeContext, plan_materialize
from pylog_spark.operations.verify.task import Stretch, verify_stretch
from storage_core.catalog.roles import Role
from storage_core.filenames import MANIFEST_FILE
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.verification.partition import VerifyOptions
from storage_core.store.generations import create_root
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.open_objects import MANAGED_PREFIX
from tests.pylog_spark.operations.test_verify import target
from tests.storage_core.maintenance.ingest.mirrors import ingest, segment, write_files


@pytest.fixture
def managed(tmp_path) -> LocalObjectStore:
    """A managed root with one partition, whose manifest was lost."""
    write_files(tmp_path / "mirror", segment(0), segment(6))
    objects = LocalObjectStore(tmp_path / "managed")
    create_root(objects, now_ms=1)
    ingest(LocalObjectStore(tmp_path / "mirror"), objects, rules=IngestRules(sync_has_stopped=True))
    objects.delete([f"orders-0/{MANIFEST_FILE}"])
    return objects


def materialized(managed, tmp_path, topic="orders"):
    context = MaterializeContext(root=managed.url, directory=str(tmp_path / "out"), present={})
    listed = pa.RecordBatch.from_pylist(
        [{"topic": topic, "partition": 0, "error_class": None, "error": None}]
    )
    (row,) = plan_materialize(iter([listed]), context)
    return row


def verified(managed, topic="orders"):
    place = replace(
        target(f"{MANAGED_PREFIX}{managed.url}/{topic}-0"),
        root=managed.url,
        context=replace(target().context, role=Role.MANAGED),
    )
    return verify_stretch(Stretch(target=place, size_bytes=0), VerifyOptions(now_ms=0))


def test_a_partition_whose_manifest_is_gone_is_not_materialized_as_none(managed, tmp_path):
    row = materialized(managed, tmp_path)
    assert (row.status, row.failure.error_class) == ("failed", "ManifestError")
    assert "orders-0/manifest.json: is not there, but orders-0/" in row.failure.error


def test_a_partition_whose_manifest_is_gone_does_not_verify(managed):
    (row,) = verified(managed)
    assert row.failure.error_class == "ManifestError"
    assert "bring the manifest back" in row.failure.error


def test_a_folder_with_nothing_in_it_is_no_partition(managed, tmp_path):
    assert materialized(managed, tmp_path, "empty").status == "skipped"
    assert [row.row for row in verified(managed, "empty")] == ["finding", "partition"]
