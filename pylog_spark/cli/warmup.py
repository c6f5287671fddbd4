"""``pylog warmup``: run every kernel path once, and prepare Spark. The kernels run on a log of
fourteen records."""

import pkgutil
import time
from base64 import b64decode
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import typer

from pylog_spark.cli.dump_lines import JsonLines
from pylog_spark.cli.dump_segment import dump_segment
from pylog_spark.exit_code import ExitCode
from pylog_spark.house import additions
from pylog_spark.java import (
    ARCHIVE_SUFFIX,
    class_archive,
    find_java,
    options_to_make,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.session import (
    JAVA_OPTIONS,
    build_session,
    delta_jars,
    has_session,
    is_delta_installed,
    is_spark_installed,
)
from storage_core import kafka_log, kernels
from storage_core.checkpoint.lock import LockedFile
from storage_core.clock import ManualClock
from storage_core.config import CleanerConfig, CleanupPolicy, LogConfig, OffsetMapHash
from storage_core.errors import MissingSoftwareError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE, log_file
from storage_core.formats.batch_v2 import Codec
from storage_core.kernels._code_files import cache_folder
from storage_core.kernels._jit import kernels_of
from storage_core.kernels.protobuf_wire import STRING
from storage_core.local_files import open_folder
from storage_core.log.batch_search import first_headers
from storage_core.log.committed_view import load_committed_view
from storage_core.log.log_loader import load_log
from storage_core.log.unified_log import UnifiedLog
from storage_core.maintenance.compaction.key_exchange import FOLD, KeyBucket, send_segment
from storage_core.maintenance.compaction.merged import (
    ExchangedGroup,
    facts_for_pass_two,
    fold_facts,
    merge_indexes,
)
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.partial import index_segment
from storage_core.maintenance.compaction.partition import HASH_KEY_BYTES, clean_and_load
from storage_core.maintenance.compaction.plan import (
    CleanRequest,
    CompactionPlan,
    choose_range,
    plan_compaction,
)
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.plain_inspection import inspect_partitions
from storage_core.maintenance.retention.partition import plan_retain
from storage_core.reading.inspection import inspect_root
from storage_core.records.batch_builder import BatchSettings, build_all
from storage_core.records.checked_headers import scan_checked_headers
from storage_core.records.codecs import Arena, Blocks, compress_blocks, decompress_blocks
from storage_core.records.new_records import NewRecords
from storage_core.store import LocalStore, LogStore
from storage_core.store.folder_entries import delete_names
from storage_core.temporary_folder import temporary_folder
from storage_core.values.avro_columns import run
from storage_core.values.avro_program import AvroType, compile_program
from storage_core.values.json_columns import json_decoder
from storage_core.values.protobuf_columns import MessageColumns
from storage_core.values.protobuf_fields import Field, Shape
from storage_core.writing.staging import WriteRequest, WriteRun, stage_records

# Archive Spark's Java classes for jobs' JVMs, in ``pylog warmup``.

_MEGA: Final = 1e6


def keep_java_classes() -> str | None:
    """Make the missing archive of classes; return a line about it. None where there is no Spark
    here, or its JVM is somebody else's."""
    if not is_spark_installed() or has_session():
        return None
    started = time.perf_counter()
    try:
        has_delta = is_delta_installed()
        archive = class_archive(find_java(), delta_jars() if has_delta else [])
        if not archive.exists():
            _make(archive, delta=has_delta)
    except (MissingSoftwareError, OSError) as error:
        return f"Spark's Java classes are not kept: {error}"
    if not archive.exists():
        return "Spark's Java classes are not kept: this Java makes no archive of them"
    seconds, size = time.perf_counter() - started, archive.stat().st_size / _MEGA
    return f"Spark's Java classes are ready after {seconds:.1f} s; {size:.0f} MB in {archive}"


def _make(archive: Path, *, delta: bool) -> None:
    with temporary_folder(".new-", archive.parent) as scratch:
        new = scratch / archive.name
        record_classes(new, delta=delta)
        if new.exists():
            # Those of another Java or Spark: they are large, and can be made again.
            for other in archive.parent.glob(f"*{ARCHIVE_SUFFIX}"):
                other.unlink(missing_ok=True)
            new.rename(archive)


def record_classes(archive: Path, *, delta: bool) -> None:
    """Run typical job work; let the JVM record its classes. It writes them down when it ends. The
    JVM is this process's only one: it can start no other.

    Args:
        archive: The file; where this Java makes none, it is not there afterwards.
        delta: Whether Delta's jars come first on the class path.
    """
    settings = {
        JAVA_OPTIONS: " ".join(options_to_make(archive)),
        "spark.sql.shuffle.partitions": "2",
    }
    spark = build_session(
        "local[2]", settings, app_name="pylog warmup", delta=delta, is_of_job=True
    )
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # its JVM has to end, here
    process = gateway.proc
    frame = spark.range(100).repartition(4).mapInArrow(lambda batches: batches, "id long")
    frame.groupBy("id").count().orderBy("id").toArrow()
    spark.sparkContext.broadcast([1]).destroy()
    format_of_tables = "delta" if delta else "parquet"
    with temporary_folder("pylog-warmup-") as folder:
        frame.write.format(format_of_tables).save(f"{folder}/table")
        spark.read.format(format_of_tables).load(f"{folder}/table").filter("id > 5").collect()
    spark.stop()
    process.stdin.close()
    process.wait()


# The sample's records are older, and nothing else depends on the clock.
_NOW_MS: Final = 1_800_000_000_000
_PARTITION: Final = "warmup-0"
# From here on the sample is dirty when it is cleaned again: what lies before is looked up.
_SECOND_SEGMENT: Final = 9
_MORE_KEYS_THAN_FIT: Final = 1 << 13
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CONFIG: Final = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))

# A log of three segments and fourteen records, small enough for code. It has what makes compaction
# take each of its ways: messages of the formats before v2, keys, a record without one, headers,
# tombstones, an aborted and a committed transaction. ``tests/pylog_spark/cli/warmup_sample.py`` has
# built it; its test holds the two together.
_SAMPLE: Final = {
    "00000000000000000000.index": "AAAAAgAAABwAAAAFAAAAiQAAAAcAAADnAAAACAAAATY=",
    "00000000000000000000.log": (
        "AAAAAAAAAAAAAAAQIcgQyQAAAAAAAWEAAAABMAAAAAAAAAACAAAAYSp2s1cBAgAAAYvP5WgA/////wAAAEuCU0"
        "5BUFBZAAAAAAEAAAABAAAAN0YAABkBNBelwnWUAQAAAAGLz+VoARgEAWYBBg0BARoQF1BC01QBCTgBi8/laAAA"
        "AAABYgAAAAAAAAAAAAAAAwAAAFIAAAAAAtxmT5wAAAAAAAIAAAGLz+VoAAAAAYvP5WgA//////////////////"
        "8AAAADHgAAAAJhAjEEAmgCeAJuARAAAAICYgIyAA4AAAQBAjMAAAAAAAAAAAYAAABDAAAAAAKDSf0IABAAAAAB"
        "AAABi8/laAAAAAGLz+VoAAAAAAAAAAABAAAAAAAAAAAAAhAAAAACYwI2ABAAAAICYwI3AAAAAAAAAAAIAAAAQg"
        "AAAAAC26H0RAAwAAAAAAAAAYvP5WgAAAABi8/laAAAAAAAAAAAAQAA/////wAAAAEgAAAACAAAAAAMAAAAAAAA"
        "AA=="
    ),
    "00000000000000000000.timeindex": "AAABi8/laAAAAAAC",
    "00000000000000000000.txnindex": "AAAAAAAAAAAAAQAAAAAAAAAGAAAAAAAAAAgAAAAAAAAACQ==",
    "00000000000000000009.index": "AAAAAgAAAE8AAAAEAAAAnQ==",
    "00000000000000000009.log": (
        "AAAAAAAAAAkAAABDAAAAAALj0AyJABAAAAABAAABi8/laAAAAAGLz+VoAAAAAAAAAAABAAAAAAACAAAAAhAAAA"
        "ACZAI2ABAAAAICZAI3AAAAAAAAAAALAAAAQgAAAAACL58iDAAwAAAAAAAAAYvP5WgAAAABi8/laAAAAAAAAAAA"
        "AQAA/////wAAAAEgAAAACAAAAAEMAAAAAAAAAAAAAAAAAAAMAAAAQgAAAAACRt+pawAAAAAAAQAAAYvP5WgAAA"
        "ABi8/laAD//////////////////wAAAAIOAAAAAmEBABAAAAICZQI0AA=="
    ),
    "00000000000000000009.timeindex": "AAABi8/laAAAAAAB",
    "00000000000000000014.index": "",
    "00000000000000000014.log": (
        "AAAAAAAAAA4AAAA6AAAAAAIJaiobAAAAAAAAAAABi8/laAAAAAGLz+VoAP//////////////////AAAAARAAAA"
        "ACYgI1AA=="
    ),
    "00000000000000000014.timeindex": "AAABi8/laAAAAAAA",
    "leader-epoch-checkpoint": "MAoxCjAgMwo=",
}


def warmup(_line: CommandLine) -> int:
    """Compile all kernels, archive Spark's classes; return the exit status. The command says so."""
    typer.echo(warm_up())
    classes = keep_java_classes()
    if classes is not None:
        typer.echo(classes)
    return ExitCode.DONE


def warm_up() -> str:
    """Compile every kernel and return a line that says so."""
    started = time.perf_counter()
    with temporary_folder("pylog-warmup-") as folder:
        for hash_kind in OffsetMapHash:
            for first_dirty_offset in (0, _SECOND_SEGMENT):
                directory = folder / f"{hash_kind}-{first_dirty_offset}" / _PARTITION
                directory.parent.mkdir()
                write_sample(directory)
                _read(directory)
                _look(directory.parent)
                for digest in additions("warm_up"):
                    digest(directory)
                _retain(directory)
                _index_apart(directory)
                _clean(directory, hash_kind, first_dirty_offset)
        _clean_twice(folder)
        _append(folder / "appended" / _PARTITION)
    _pack()
    _grow_map()
    _decode()
    _decode_protobuf()
    json_decoder('{"type":"integer"}').decode(pa.array([b"1"]))
    seconds = time.perf_counter() - started
    where = cache_folder()
    place = f"kept in {where}" if where else "kept nowhere: no cache folder can be written"
    ready = f"{len(all_kernels())} kernels are ready after {seconds:.1f} s"
    return f"{ready}; what had to be compiled is {place}"


def all_kernels() -> dict[str, Any]:
    """Return every compiled function of the kernels, by module and name."""
    by_name = {}
    for module in pkgutil.iter_modules(kernels.__path__):
        if module.name.startswith("_"):
            continue  # how kernels are compiled
        full_name = f"{kernels.__name__}.{module.name}"
        for name, kernel in kernels_of(full_name).items():
            by_name[f"{module.name}.{name}"] = kernel
    return by_name


def _read(directory: Path) -> None:
    store = LocalStore(directory)
    view = load_committed_view(store, now_ms=_NOW_MS)
    for content in dump_segment(store, log_file(0), view):
        list(JsonLines(log_file(0)).lines(content))
    kafka_log.open_logs(directory).read().to_table()
    with closing(store.open_file(log_file(0))) as reader:
        list(scan_checked_headers(reader))
    list(first_headers(store, [log_file(0)]))


def _look(root: Path) -> None:
    """Look at a broker's directories together."""
    (root / CLEAN_SHUTDOWN_FILE).touch()
    view = inspect_root(root)
    inspect_partitions(view, view.entries, now_ms=_NOW_MS)


def _retain(directory: Path) -> None:
    cleaner = CleanerConfig()
    plan_retain(LocalStore(directory), config=_CONFIG, cleaner=cleaner, now_ms=_NOW_MS)
    with open_folder(directory) as folder:
        delete_names(folder, [], LockedFile.of(folder))


def _index_apart(directory: Path) -> None:
    """Index segments singly and merge them, like a job's tasks."""
    store = LocalStore(directory)
    cleaner = CleanerConfig()
    log = load_log(store, config=_CONFIG, cleaner=cleaner, now_ms=_NOW_MS)
    request = CleanRequest(now_ms=_NOW_MS, first_dirty_offset=0)
    plan = plan_compaction(
        log,
        _CONFIG,
        cleaner,
        choose_range(PartitionState.of_log(log), _CONFIG, request),
        now_ms=_NOW_MS,
        hash_key=bytes(HASH_KEY_BYTES),
    )
    segments = plan.round_segments
    merge_indexes(plan, [index_segment(store, plan, segment) for segment in segments])
    _exchange(store, plan, len(segments))


def _exchange(store: LogStore, plan: CompactionPlan, segments: int) -> None:
    """Let segments exchange their keys, as the tasks of a shuffle do."""
    sent = [
        message
        for number in range(segments)
        for message in send_segment(store, plan, number, buckets=1)
    ]
    facts = {message.number: message.content for message in sent if message.bucket == FOLD}
    bucket = KeyBucket(plan)
    for message in sorted(sent, key=lambda message: message.kind):
        if message.bucket != FOLD:
            bucket.hear(message.kind, message.number, message.content)
    start = fold_facts(plan, facts).groups[0]
    group = ExchangedGroup(plan=plan, start=start)
    for number, content in facts.items():
        group.put_facts(number, facts_for_pass_two(content))
    for number, ordinals in bucket.survivors():
        group.put_survivors(number, ordinals)
    group.index()


def _clean(directory: Path, hash_kind: OffsetMapHash, first_dirty_offset: int) -> None:
    clean_and_load(
        directory,
        config=_CONFIG,
        cleaner=CleanerConfig(offset_map_hash=hash_kind),
        request=CleanRequest(now_ms=_NOW_MS, first_dirty_offset=first_dirty_offset),
    )


def _clean_twice(folder: Path) -> None:
    """Clean a log piece by piece, with key sidecars."""
    directory = folder / "twice" / _PARTITION
    directory.parent.mkdir()
    write_sample(directory)
    for first, end in ((0, _SECOND_SEGMENT), (_SECOND_SEGMENT, None)):
        clean_and_load(
            directory,
            config=_CONFIG,
            cleaner=CleanerConfig(key_sidecars=str(folder / "keys")),
            request=CleanRequest(
                now_ms=_NOW_MS, first_dirty_offset=first, first_uncleanable_offset=end
            ),
        )


def _append(directory: Path) -> None:
    """Write a log: from columns, and from batches of every message format."""
    table = pa.table(
        {
            "key": pa.array([b"a", None], pa.binary()),
            "value": pa.array([b"1", b"2"], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"x"}], []], _HEADERS),
        }
    )
    records = NewRecords.from_arrow(table)
    config = LogConfig(index_interval_bytes=0)
    with UnifiedLog.open(directory, config=config, clock=ManualClock(_NOW_MS)) as log:
        log.append_columns(records, batch_records=1)
        for codec in (Codec.NONE, Codec.GZIP):
            log.append_as_leader(
                build_all(records, BatchSettings(codec=codec)).data, leader_epoch=0
            )
            old = NewRecords.from_arrow(table.drop_columns("headers"))
            entries = build_all(old, BatchSettings(magic=1, codec=codec)).data
            log.append_as_leader(entries, leader_epoch=0)
        _stage(directory.parent, table, config)


def _stage(folder: Path, table: pa.Table, config: LogConfig) -> None:
    """Stage records of a write, some with a key and some without."""
    request = WriteRequest(
        directory=str(folder), topic="warmup", partitions=2, config=config, topic_ids={}
    )
    run = WriteRun(request=request, run_id="warmup", staging=str(folder), now_ms=_NOW_MS, counts={})
    stage_records(run, table.to_batches(), task_id=0)


def _pack() -> None:
    """Compress a block with each codec, and expand it."""
    start, end = np.zeros(1, np.int64), np.full(1, HASH_KEY_BYTES)
    blocks = Blocks(np.arange(HASH_KEY_BYTES, dtype=np.uint8), start, end)
    for codec in list(Codec)[1:]:
        packed = Arena()
        packed_end = compress_blocks(codec, blocks, packed)
        decompress_blocks(
            codec,
            Blocks(packed.content, start, packed_end),
            0,
            Arena(),
            np.empty_like(packed_end),
            limit_bytes=HASH_KEY_BYTES,
            budget_bytes=HASH_KEY_BYTES,
        )


def _grow_map() -> None:
    """Fill an offset map beyond the size that it begins with."""
    keys = np.arange(_MORE_KEYS_THAN_FIT, dtype=np.uint64)
    OffsetMap().put(keys, keys, keys.astype(np.int64), len(keys))


def _decode() -> None:
    """Decode a value of Avro."""
    number = AvroType(kind="long")
    run(compile_program(number, number), pa.array([b"\0"]))


def _decode_protobuf() -> None:
    """Read a value of Protobuf: a field with a text."""
    text = Field(kind=STRING, number=1, shape=Shape.PLAIN, plain_type="string")
    MessageColumns(Field(fields=(text,)), [[0]]).decode(pa.array([b"\0\x0a\x01a"]))


def write_sample(directory: Path) -> None:
    """Write the partition into a new directory."""
    directory.mkdir()
    for name, content in _SAMPLE.items():
        (directory / name).write_bytes(b64decode(content))
