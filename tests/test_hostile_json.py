"""Every reader of JSON that lies in a directory or a bucket, or comes from a person.

Each is handed what ends a process whose parser calls itself: a hundred thousand levels, on a stack
as small as some threads have; and a number of a million digits.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pylog_spark.options.choices import BytesFormat
from pylog_spark.record_text import json_of
from pylog_spark.run.plan_file import read_plan_file
from pylog_spark.source.options import parse_options
from pylog_spark.tasks.inventory import InventoryPart, find_parts, read_tables
from storage_core.catalog.topic_dump import parse_topic_dump
from storage_core.checkpoint import CleanShutdown, parse_clean_shutdown
from storage_core.cluster.places import parse_states
from storage_core.commit.claim import hold_claim
from storage_core.commit.trash import (
    LEFT_FILE,
    RECORD_FILE,
    RUN_FILE,
    UNDO_FILE,
    TrashedCommit,
    commit_folder,
    read_commit,
    read_run,
)
from storage_core.errors import PylogError
from storage_core.filenames import PURGED_FILE, TopicPartition
from storage_core.maintenance.materialize import PIN_FILE, STATE_FILE, read_pin, read_target
from storage_core.roots.broker_undo import remember_marker
from storage_core.roots.killed_runs import _read_marker
from storage_core.store.garbage import read_purged
from storage_core.store.generations import (
    MANAGED_ROOT_FILE,
    find_root,
    history_key,
    manifest_key,
    read_head,
    read_history,
)
from storage_core.store.lease import LEASE_FILE, read_lease
from storage_core.store.managed_store import UPLOADED_PREFIX, parse_location
from storage_core.values.avro_columns import avro_decoder
from tests.kit.memory_objects import MemoryObjectStore, forget_memory

PARTITION = TopicPartition("t", 0)
RUN = "20260102T030405Z-0a1b2c3d"
OBJECTS = "memory://hostile-json"
DEEP = '{"format": ' + '[{"a":' * 50_000 + "1" + "}]" * 50_000 + "}"
CONTENTS = {
    "lists": "[" * 100_000 + "]" * 100_000,
    "objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "deep in a field": DEEP,
    "never closed": '{"a": ' + "[" * 100_000,
    "digits": '{"version": ' + "9" * 1_000_000 + "}",
}

Reader = Callable[[str, Path], Any]


def _file(name: str, read: Callable[[Path], Any]) -> Reader:
    def reader(content: str, folder: Path) -> Any:
        (folder / name).write_text(content)
        return read(folder)

    return reader


def _object(key: str, read: Callable[[MemoryObjectStore], Any]) -> Reader:
    def reader(content: str, folder: Path) -> Any:
        forget_memory(OBJECTS)
        objects = MemoryObjectStore(OBJECTS)
        objects.put(key, content.encode())
        return read(objects)

    return reader


def _commit(name: str) -> Reader:
    def reader(content: str, folder: Path) -> Any:
        directory = folder / "log" / "t-0"
        place = commit_folder(folder / RUN, directory, 0)
        place.mkdir(parents=True)
        record = TrashedCommit(
            folder=place,
            run_id=RUN,
            action="retain",
            directory=directory,
            former_files=(),
            before=(),
        )
        (place / RECORD_FILE).write_bytes(record.encode_record())
        assert read_commit(place) == record
        (place / name).write_text(content)
        return read_commit(place)

    return reader


def _claim(content: str, folder: Path) -> Any:
    path = folder / "t-0.claim"
    path.write_text(content + "\n")
    with hold_claim(path) as claim:
        return claim.steps


def _plan_of_parquet(column: str | None) -> Reader:
    def reader(content: str, folder: Path) -> Any:
        names = ("action", "root", "topic", "directory", "status", "reason")
        texts = {"figures": "{}", "plan": "{}", "files": "[]"} | (
            {column: content} if column else {}
        )
        row = dict.fromkeys(names, "x") | {"partition": 0} | texts
        header = content if column is None else '{"format": "pylog-plan", "version": 1}'
        table = pa.Table.from_pylist([row]).replace_schema_metadata({"pylog-plan": header})
        pq.write_table(table, folder / "plan.parquet")
        return read_plan_file(folder / "plan.parquet")

    return reader


def _remembered(content: str, folder: Path) -> Any:
    path = folder / "clean-shutdown-marker"
    path.write_text(content)
    assert _read_marker(path, folder, finished=set()) is None
    raise REFUSED


def _marker(content: str, folder: Path) -> Any:
    assert parse_clean_shutdown(content.encode()) == CleanShutdown()
    assert parse_clean_shutdown(content.encode()[:60_000]) == CleanShutdown()
    raise REFUSED


REFUSED = ValueError("no word of it is believed")

READERS: dict[str, Reader] = {
    "the root of a managed root": _object(MANAGED_ROOT_FILE, find_root),
    "a lease": _object(LEASE_FILE, read_lease),
    "the record of purges": _object(PURGED_FILE, read_purged),
    "a manifest": _object(manifest_key(PARTITION), lambda objects: read_head(objects, PARTITION)),
    "a manifest of the history": _object(
        history_key(PARTITION, 1), lambda objects: read_history(objects, PARTITION, 1)
    ),
    "where an upload is": lambda content, _: parse_location(UPLOADED_PREFIX + content),
    "the marker of a broker": _marker,
    "the marker of a killed run": _remembered,
    "the marker of an undo": _file(
        "marker",
        lambda at: remember_marker(
            at / "marker", SimpleNamespace(location=str(at), was_clean=False), verified=()
        ),
    ),
    "a claim": _claim,
    "a run in the trash": _file(RUN_FILE, read_run),
    "a record in the trash": _commit(RECORD_FILE),
    "what a commit left": _commit(LEFT_FILE),
    "the state of an undo": _commit(UNDO_FILE),
    "a copy's state": _file(STATE_FILE, lambda at: read_target(at, root="r", root_id="1")),
    "a copy's generation": _file(PIN_FILE, read_pin),
    "a plan": _file("plan.json", lambda at: read_plan_file(at / "plan.json")),
    "a plan's head in Parquet": _plan_of_parquet(None),
    "a plan's row in Parquet": _plan_of_parquet("plan"),
    "a topic dump": lambda content, _: parse_topic_dump(content.encode(), file="d", modified_ms=1),
    "states of partitions": lambda content, _: parse_states(content.encode(), "states"),
    "offsets of a query": lambda content, _: parse_options(
        {"path": "/p", "startingOffsets": content}
    ),
    "partitions of a query": lambda content, _: parse_options({"path": "/p", "assign": content}),
    "the manifest of an inventory": _file(
        "manifest.json", lambda at: find_parts(str(at / "manifest.json"))
    ),
    "a record's value that is to be JSON": lambda content, _: json_of(
        content.encode(), BytesFormat.JSON
    ),
    "a schema of Avro": lambda content, _: avro_decoder([content]),
    "lines of an inventory": _file(
        "files.jsonl", lambda at: list(read_tables(InventoryPart(location=str(at / "files.jsonl"))))
    ),
}


@pytest.mark.sampled(30)
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", READERS)
def test_json_of_any_depth_or_width_is_refused_in_a_thread_with_a_small_stack(
    tmp_path: Path, name: str, content: str
):
    refused = []

    def read() -> None:
        try:
            READERS[name](CONTENTS[content], tmp_path)
        except (PylogError, ValueError) as error:
            refused.append(str(error))

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=read)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    (reason,) = refused
    assert len(reason) < 2000


def test_every_reader_is_named_above():
    """A new use of Python's parser stands here, or reads what this program alone has written."""
    ours = {
        "storage_core/values/avro_values.py",  # a schema, written anew after it was checked
        "storage_core/values/avro_program.py",  # likewise
        "pylog_spark/cli/doctor.py",  # findings of this run, from a file of its own
        "pylog_spark/cli/jobs.py",  # rows of this run
        "pylog_spark/cli/runner.py",  # a text that was just written
        "pylog_spark/cluster/audit/driver.py",  # from task to driver
        "pylog_spark/operations/compact/driver.py",
        "pylog_spark/tasks/message.py",  # from task to driver
        "pylog_spark/run/plan_file.py",  # its own values, made plain
        "pylog_spark/run/recording.py",
        "pylog_spark/operations/recover/recovered_logs.py",
        "pylog_spark/run/saved_plans.py",
        "pylog_spark/operations/compact/pass_task.py",  # from task to task
        "pylog_spark/cluster/differences_task.py",  # from task to task
        "pylog_spark/operations/verify/task.py",
        "storage_core/checkpoint/lock.py",  # a process of this one's
        "storage_core/json_values.py",
        "storage_core/maintenance/compaction/partition.py",
        "storage_core/records/packing.py",
        "pylog_spark/tasks/observe.py",  # from driver to task
        "storage_core/store/tier_archive.py",  # from driver to task
        "storage_core/reading/polars_source.py",  # what Polars makes of a predicate
        "pylog_spark/record_text.py",  # what Protobuf's library makes of a value
    }
    root = Path(__file__).parents[1]
    found = {
        str(path.relative_to(root))
        for package in ("pylog_spark", "storage_core", "jobs")
        for path in (root / package).rglob("*.py")
        if "json.loads(" in path.read_text() or "json.load(" in path.read_text()
    }
    assert found == ours
