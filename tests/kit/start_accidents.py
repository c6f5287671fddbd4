"""Accidents that happen to the log directories of a broker, each what a start reads or renames.

The directories are those of ``golden/two-disks``: ``d1`` has the cluster's metadata, orders-0,
events-1, quiet-0; ``d2`` has orders-1 and events-0. Of one disk, ``d1`` has all of them.
"""

import gzip
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.catalog.metadata_image import ResourceType
from storage_core.formats.batch_v2 import BATCH_HEADER
from storage_core.messages.internal_records import encode_metadata_record
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch
from tests.kit.file_damage import batch_positions

# Kafka's marks of renamed directories.
FUTURE: Final = ".0123456789abcdef0123456789abcdef-future"
STRAY: Final = ".0123456789abcdef0123456789abcdef-stray"
DELETE: Final = ".0123456789abcdef0123456789abcdef-delete"
METADATA: Final = "__cluster_metadata-0"
OTHER_ID: Final = "LwFNkYlYRSyQPM0mZ4XfHw"
GARBAGE: Final = b"\x00\x01garbage\xff" * 3
FIRST, SECOND, THIRD, LAST = (f"{base:020d}" for base in (0, 130, 250, 370))
_RECOVERY: Final = "recovery-point-offset-checkpoint"
_LOG_START: Final = "log-start-offset-checkpoint"
_WATERMARK: Final = "replication-offset-checkpoint"
_CLEANER: Final = "cleaner-offset-checkpoint"
_MARKER: Final = ".kafka_cleanshutdown"
_SNAPSHOT: Final = f"{FIRST}-0000000000.checkpoint"
_CONFIG_RECORD: Final = 4


class NotApplicableError(Exception):
    """What the accident would happen to is not there, or is not what it was."""


@dataclass(frozen=True, slots=True)
class Disks:
    """The log directories of one broker; a partition is found wherever it is."""

    base: Path

    @property
    def roots(self) -> list[Path]:
        """The log directories, in order."""
        return sorted(path for path in self.base.glob("d[0-9]") if path.is_dir())

    @property
    def first(self) -> Path:
        """The one with the cluster's metadata."""
        return self.base / "d1"

    def give_to(self, user: int) -> None:
        """Make everything a user's own, and let that user come in."""
        for path in (self.base.parent, self.base):
            path.chmod(0o755)
        for path in self.base.rglob("*"):
            os.chown(path, user, user, follow_symlinks=False)

    @property
    def last(self) -> Path:
        """The other one; the same where there is only one."""
        return self.roots[-1]

    def __getitem__(self, name: str) -> Path:
        """Return a partition's directory."""
        for root in self.roots:
            if (root / name).is_dir():
                return root / name
        raise NotApplicableError(name)

    def elsewhere(self, name: str) -> Path:
        """Return the log directory that does not have a partition; None of one disk has not."""
        here = self[name].parent
        for root in self.roots:
            if root != here:
                return root
        raise NotApplicableError(name)


Happen = Callable[[Disks], object]


def _write(path: Path, data: bytes) -> None:
    if not path.exists():
        raise NotApplicableError(path)
    path.write_bytes(data)


def _in(partition: str, file: str, data: bytes) -> Happen:
    """Write over a file of a partition."""
    return lambda disks: _write(disks[partition] / file, data)


def _new(partition: str, file: str, data: bytes) -> Happen:
    return lambda disks: (disks[partition] / file).write_bytes(data)


def _without(partition: str, *files: str) -> Happen:
    def happen(disks: Disks) -> None:
        for file in files:
            _require(disks[partition] / file).unlink()

    return happen


def _require(path: Path) -> Path:
    if not path.exists():
        raise NotApplicableError(path)
    return path


def _first(file: str, data: bytes | None) -> Happen:
    """Write over a file of the first log directory; None removes it."""
    return lambda disks: _replace(disks.first / file, data)


def _last(file: str, data: bytes | None) -> Happen:
    return lambda disks: _replace(disks.last / file, data)


def _every(file: str, data: bytes | None) -> Happen:
    def happen(disks: Disks) -> None:
        for root in disks.roots:
            _replace(root / file, data)

    return happen


def _replace(path: Path, data: bytes | None) -> None:
    if data is not None:
        path.write_bytes(data)
    else:
        _require(path).unlink()


def _edit(file: str, old: str, new: str, *, is_last: bool = True) -> Happen:
    """Change a line of a file of a log directory."""

    def happen(disks: Disks) -> None:
        path = _require((disks.last if is_last else disks.first) / file)
        lines = path.read_bytes().decode("latin-1").splitlines(keepends=True)
        changed = [new if line.startswith(old) else line for line in lines]
        if changed == lines:
            raise NotApplicableError(path)
        path.write_bytes("".join(changed).encode("latin-1"))

    return happen


def _of_another_node(disks: Disks) -> None:
    """Of one disk nobody knows but the broker's settings, which are no part of it."""
    if disks.first == disks.last:
        raise NotApplicableError(disks.first)
    _edit("meta.properties", "node.id=", "node.id=2\n")(disks)


def _same_directory_id(disks: Disks) -> None:
    lines = _require(disks.first / "meta.properties").read_text().splitlines()
    own = next((line for line in lines if line.startswith("directory.id=")), None)
    if own is None or disks.first == disks.last:
        raise NotApplicableError(disks.first)
    _edit("meta.properties", "directory.id=", f"{own}\n")(disks)


def _to_version_0(roots: list[Path], *, has_cluster: bool = True) -> None:
    for path in (root / "meta.properties" for root in roots):
        text = _require(path).read_bytes().decode("latin-1")
        fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if not {"node.id", "cluster.id"} <= fields.keys():
            raise NotApplicableError(path)
        cluster = f"cluster.id={fields['cluster.id']}\n" if has_cluster else ""
        path.write_text(f"version=0\nbroker.id={fields['node.id']}\n{cluster}")


def _as_folder(path: Path) -> None:
    _require(path)
    path.unlink()
    path.mkdir()


def _folder_in(partition: str, file: str) -> Happen:
    return lambda disks: _as_folder(disks[partition] / file)


def _as_full_folder(path: Path) -> None:
    _as_folder(path)
    (path / "notes.txt").write_bytes(b"mine")


def _link(disks: Disks, name: str, *, is_broken: bool = False) -> None:
    place = disks[name]
    target = disks.base / "elsewhere" / name
    target.parent.mkdir(exist_ok=True)
    shutil.move(place, target)
    place.symlink_to(target if not is_broken else target.with_name("gone"))


def _copy(disks: Disks, name: str, path: Path) -> Path:
    if path.exists():
        raise NotApplicableError(path)
    shutil.copytree(disks[name], path, symlinks=True)
    return path


def _move(disks: Disks, name: str, path: Path) -> Path:
    if path.exists():
        raise NotApplicableError(path)
    shutil.move(disks[name], path)
    return path


def _with_id(directory: Path, topic_id: str) -> None:
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")


def _set_point(file: str, topic: str, number: int, offset: int) -> Happen:
    """Set a partition's line in a checkpoint of the directory that has it."""

    def happen(disks: Disks) -> None:
        path = _require(disks[f"{topic}-{number}"].parent / file)
        lines = path.read_bytes().decode("latin-1").splitlines()
        if len(lines) < 2 or lines[0] != "0":  # version and count
            raise NotApplicableError(path)
        rest = [line for line in lines[2:] if not line.startswith(f"{topic} {number} ")]
        rest.append(f"{topic} {number} {offset}")
        path.write_text("\n".join(["0", str(len(rest)), *rest]) + "\n")

    return happen


def _log(disks: Disks, partition: str, base: str) -> Path:
    return _require(disks[partition] / f"{base}.log")


def _cut(partition: str, base: str, drop: int) -> Happen:
    """Cut bytes off a segment's end."""

    def happen(disks: Disks) -> None:
        path = _log(disks, partition, base)
        data = path.read_bytes()
        if len(data) <= drop:
            raise NotApplicableError(path)
        path.write_bytes(data[:-drop])

    return happen


def _flip(partition: str, base: str, batch: int = 0) -> Happen:
    """Turn the last bit of a batch over."""

    def happen(disks: Disks) -> None:
        path = _log(disks, partition, base)
        data = bytearray(path.read_bytes())
        places = batch_positions(bytes(data))
        if len(places) <= abs(batch):
            raise NotApplicableError(path)
        position, size = places[batch]
        data[position + size - 1] ^= 1
        path.write_bytes(bytes(data))

    return happen


def _append(partition: str, base: str, data: bytes) -> Happen:
    def happen(disks: Disks) -> None:
        path = _log(disks, partition, base)
        path.write_bytes(path.read_bytes() + data)

    return happen


def _preallocate_index(disks: Disks) -> None:
    for suffix in (".index", ".timeindex"):
        with _require(disks["events-1"] / f"{LAST}{suffix}").open("r+b") as file:
            file.truncate(10 * 1024 * 1024)


def _drop_segment(partition: str, *bases: str) -> Happen:
    def happen(disks: Disks) -> None:
        for base in bases:
            _log(disks, partition, base)
            for path in disks[partition].glob(f"{base}.*"):
                path.unlink()

    return happen


def _bad_index(disks: Disks) -> None:
    """An index whose last entry is below its segment's base offset."""
    path = _require(disks["events-1"] / f"{SECOND}.index")
    path.write_bytes(struct.pack(">ii", -5, 100) * 3)


def _rename(partition: str, old: str, new: str) -> Happen:
    def happen(disks: Disks) -> None:
        source = _require(disks[partition] / old)
        source.rename(source.with_name(new))

    return happen


def _duplicate_file(partition: str, old: str, new: str) -> Happen:
    def happen(disks: Disks) -> None:
        source = _require(disks[partition] / old)
        source.with_name(new).write_bytes(source.read_bytes())

    return happen


def _short_future(disks: Disks) -> None:
    path = _copy(disks, "orders-0", disks.elsewhere("orders-0") / f"orders-0{FUTURE}")
    for file in path.glob(f"{LAST}.*"):
        file.unlink()


def _assigned_future(disks: Disks) -> None:
    """The copy lies where the partition is assigned to, the partition itself elsewhere."""
    here = disks["orders-0"].parent
    other = disks.elsewhere("orders-0")
    _copy(disks, "orders-0", here / f"orders-0{FUTURE}")
    _move(disks, "orders-0", other / "orders-0")


def _assigned_short_future(disks: Disks) -> None:
    _assigned_future(disks)
    for file in disks.first.glob(f"orders-0*future/{LAST}.*"):
        file.unlink()


def _damaged(suffix: str) -> Happen:
    def happen(disks: Disks) -> None:
        place = _copy(disks, "events-1", disks.first / f"gone-0{suffix}")
        (place / "nonsense.log").write_bytes(b"")

    return happen


def _folder(name: str, *, is_last: bool = True) -> Happen:
    return lambda disks: ((disks.last if is_last else disks.first) / name).mkdir()


def _unknown_partition(disks: Disks) -> None:
    _copy(disks, "orders-0", disks.first / "orders-7")


def _unknown_topic(disks: Disks) -> None:
    _with_id(_copy(disks, "orders-0", disks.first / "gone-0"), OTHER_ID)


def _user_folder(disks: Disks) -> None:
    (disks.first / "backup-2024").mkdir()
    (disks.first / "backup-2024" / "notes.txt").write_text("mine")


def _to_other_disk(disks: Disks) -> None:
    _move(disks, "orders-0", disks.elsewhere("orders-0") / "orders-0")


def _no_disk(disks: Disks) -> None:
    """A disk that was not mounted: its mount point is an empty folder."""
    if disks.first == disks.last:
        raise NotApplicableError(disks.last)
    last = disks.last
    shutil.rmtree(last)
    last.mkdir()


def _metadata_log(disks: Disks) -> Path:
    return _log(disks, METADATA, FIRST)


def _metadata_half(disks: Disks) -> None:
    """The second half of the metadata log is gone, where a batch ends."""
    path = _metadata_log(disks)
    data = path.read_bytes()
    places = batch_positions(data)
    path.write_bytes(data[: places[len(places) // 2][0]])


def _never_started(disks: Disks) -> None:
    """The metadata as ``kafka-storage format`` leaves it: a snapshot, and no log yet."""
    directory = disks[METADATA]
    _require(directory / _SNAPSHOT)
    for path in directory.iterdir():
        if path.name not in {_SNAPSHOT, "partition.metadata"}:
            path.unlink()


def _never_started_torn(disks: Disks) -> None:
    _never_started(disks)
    _shorten(METADATA, _SNAPSHOT, 7)(disks)


def _never_started_without_snapshot(disks: Disks) -> None:
    _never_started(disks)
    (disks[METADATA] / _SNAPSHOT).unlink()


def _shorten(partition: str, file: str, drop: int) -> Happen:
    """Cut bytes off a file's end."""

    def happen(disks: Disks) -> None:
        path = _require(disks[partition] / file)
        data = path.read_bytes()
        if len(data) <= drop:
            raise NotApplicableError(path)
        path.write_bytes(data[:-drop])

    return happen


def append_metadata(root: Path, *values: bytes) -> None:
    """Append records to the cluster's metadata log, as its controller would."""
    path = max((root / METADATA).glob("*.log"))
    data = path.read_bytes()
    places = batch_positions(data)
    if not places or sum(places[-1]) != len(data):
        raise NotApplicableError(path)
    position, _ = places[-1]
    [last] = np.frombuffer(data, BATCH_HEADER, count=1, offset=position)
    batch = BatchSpec(
        records=tuple(RecordSpec(value=value) for value in values),
        base_offset=int(last["base_offset"]) + int(last["last_offset_delta"]) + 1,
        leader_epoch=int(last["partition_leader_epoch"]),
    )
    path.write_bytes(data + encode_batch(batch))


def config_record(kind: ResourceType, name: str, key: str, value: str) -> bytes:
    """Return a record of the cluster's metadata that sets a config."""
    fields = {"resource_type": kind, "resource_name": name, "name": key, "value": value}
    return encode_metadata_record(_CONFIG_RECORD, 0, fields)


def _config(kind: ResourceType, name: str, **settings: str) -> Happen:
    """Set configs in the cluster's metadata; their keys have underscores for dots."""

    def happen(disks: Disks) -> None:
        records = [
            config_record(kind, name, key.replace("_", "."), value)
            for key, value in settings.items()
        ]
        append_metadata(disks[METADATA].parent, *records)

    return happen


def _compressed(partition: str, *bases: str) -> Happen:
    """Another program's rotation compressed closed segments where they lay."""

    def happen(disks: Disks) -> None:
        for base in bases:
            path = _log(disks, partition, base)
            path.with_name(f"{path.name}.1.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()

    return happen


def _future_in_same(disks: Disks) -> None:
    """Two disks were merged by copying, while a partition moved between them."""
    _copy(disks, "orders-0", disks["orders-0"].parent / f"orders-0{FUTURE}")


def _future_in_same_elsewhere(disks: Disks) -> None:
    """The same on the disk that the partition is not assigned to."""
    other = disks.elsewhere("orders-0")
    _copy(disks, "orders-0", other / f"orders-0{FUTURE}")
    _move(disks, "orders-0", other / "orders-0")


def _merged(disks: Disks) -> None:
    """The second disk was copied onto the first, in the midst of a move to it, and taken away."""
    if disks.first == disks.last:
        raise NotApplicableError(disks.last)
    _copy(disks, "events-0", disks.first / f"events-0{FUTURE}")
    for path in disks.last.iterdir():
        if path.is_dir():
            shutil.move(path, disks.first / path.name)
    shutil.rmtree(disks.last)


def _without_folder(disks: Disks) -> None:
    _config(ResourceType.TOPIC, "quiet", segment_bytes="1024")(disks)
    shutil.rmtree(disks["quiet-0"])


def _drop_disk(disks: Disks) -> None:
    """One disk is not in log.dirs any more."""
    if disks.first == disks.last:
        raise NotApplicableError(disks.last)
    disks.last.rename(disks.base / "dropped")


def _cordon(disks: Disks) -> None:
    if disks.first == disks.last:
        raise NotApplicableError(disks.last)
    own = {"cordoned_log_dirs": str(disks.last), "log_retention_bytes": "4096"}
    _config(ResourceType.BROKER, "1", **own)(disks)
    _config(ResourceType.BROKER, "", log_retention_ms="86400000000")(disks)


def _drop_cordoned(disks: Disks) -> None:
    _cordon(disks)
    _drop_disk(disks)


# Name by name what happens. Names are stable: results are kept by them.
ACCIDENTS: Final[dict[str, Happen]] = {
    "meta-empty-first": _first("meta.properties", b""),
    "meta-empty-last": _last("meta.properties", b""),
    "meta-garbage-first": _first("meta.properties", GARBAGE),
    "meta-garbage-last": _last("meta.properties", GARBAGE),
    "meta-missing-first": _first("meta.properties", None),
    "meta-missing-last": _last("meta.properties", None),
    "meta-missing-all": _every("meta.properties", None),
    "meta-v0-first": lambda disks: _to_version_0([disks.first]),
    "meta-v0-last": lambda disks: _to_version_0([disks.last]),
    "meta-v0-all": lambda disks: _to_version_0(disks.roots),
    "meta-v0-no-cluster": lambda disks: _to_version_0(disks.roots, has_cluster=False),
    "meta-version-7": _edit("meta.properties", "version=", "version=7\n"),
    "meta-version-7-first": _edit("meta.properties", "version=", "version=7\n", is_last=False),
    "meta-other-node": _of_another_node,
    "meta-other-cluster": _edit(
        "meta.properties", "cluster.id=", "cluster.id=AAAAAAAAAAAAAAAAAAAAAg\n"
    ),
    "meta-no-cluster": _edit("meta.properties", "cluster.id=", ""),
    "meta-no-node": _edit("meta.properties", "node.id=", ""),
    "meta-no-directory-id": _edit("meta.properties", "directory.id=", ""),
    "meta-new-directory-id": _edit(
        "meta.properties", "directory.id=", f"directory.id={OTHER_ID}\n"
    ),
    "meta-bad-directory-id": _edit("meta.properties", "directory.id=", "directory.id=none\n"),
    "meta-same-directory-id": _same_directory_id,
    "meta-folder-last": lambda disks: _as_folder(disks.last / "meta.properties"),
    "marker-missing": _every(_MARKER, None),
    "marker-missing-last": _last(_MARKER, None),
    "marker-garbage": _every(_MARKER, GARBAGE),
    "marker-empty": _every(_MARKER, b""),
    "marker-folder": lambda disks: _as_folder(disks.last / _MARKER),
    "marker-folder-full": lambda disks: _as_full_folder(disks.last / _MARKER),
    "lock-folder": lambda disks: (disks.last / ".lock").mkdir(),
    "file-in-root": _last("notes.txt", b"mine"),
    "lost-and-found": _folder("lost+found"),
    "snapshot-folder": _folder(".snapshot"),
    "backup-folder": _folder("backup"),
    "backup-copy": lambda disks: _copy(disks, "orders-0", disks.first / "orders-0.bak"),
    "backup-number": _user_folder,
    "odd-delete-mark": lambda disks: _copy(disks, "events-1", disks.first / "events-1.x-delete"),
    "cache-folder": _folder("remote-log-index-cache"),
    "cache-file": lambda disks: (disks.last / "remote-log-index-cache").write_bytes(b""),
    "disk-unmounted": _no_disk,
    "linked": lambda disks: _link(disks, "orders-0"),
    "linked-broken": lambda disks: _link(disks, "orders-0", is_broken=True),
    "linked-broken-last": lambda disks: _link(disks, "events-0", is_broken=True),
    "linked-metadata": lambda disks: _link(disks, METADATA),
    "moved-to-other-disk": _to_other_disk,
    "duplicate": lambda disks: _copy(disks, "orders-0", disks.elsewhere("orders-0") / "orders-0"),
    "absent": lambda disks: shutil.rmtree(disks["orders-1"]),
    "absent-quiet": lambda disks: shutil.rmtree(disks["quiet-0"]),
    "future-alone": lambda disks: _move(
        disks, "orders-0", disks.elsewhere("orders-0") / f"orders-0{FUTURE}"
    ),
    "future-alone-here": lambda disks: _move(disks, "orders-0", disks.first / f"orders-0{FUTURE}"),
    "future-beside": lambda disks: _copy(
        disks, "orders-0", disks.elsewhere("orders-0") / f"orders-0{FUTURE}"
    ),
    "future-short": _short_future,
    "future-assigned": _assigned_future,
    "future-assigned-short": _assigned_short_future,
    "future-same-directory": _future_in_same,
    "future-same-elsewhere": _future_in_same_elsewhere,
    "disks-merged": _merged,
    "stray-beside": lambda disks: _copy(disks, "events-1", disks.first / f"gone-0{STRAY}"),
    "stray-damaged": _damaged(STRAY),
    "delete-beside": lambda disks: _copy(disks, "events-1", disks.first / f"gone-0{DELETE}"),
    "delete-damaged": _damaged(DELETE),
    "topic-id-other": lambda disks: _with_id(disks["orders-0"], OTHER_ID),
    "topic-id-missing": _without("orders-0", "partition.metadata"),
    "topic-id-missing-quiet": _without("__consumer_offsets-1", "partition.metadata"),
    "topic-id-empty": _in("orders-0", "partition.metadata", b""),
    "topic-id-garbage": _in("orders-1", "partition.metadata", GARBAGE),
    "topic-id-empty-last": _in("orders-1", "partition.metadata", b""),
    "topic-id-zero-last": lambda disks: _with_id(disks["orders-1"], "AAAAAAAAAAAAAAAAAAAAAA"),
    "topic-id-folder": lambda disks: _as_folder(disks["orders-0"] / "partition.metadata"),
    "topic-id-folder-last": lambda disks: _as_folder(disks["orders-1"] / "partition.metadata"),
    "topic-id-zero": lambda disks: _with_id(disks["orders-0"], "AAAAAAAAAAAAAAAAAAAAAA"),
    "partition-unknown": _unknown_partition,
    "topic-unknown": _unknown_topic,
    "recovery-garbage": _last(_RECOVERY, GARBAGE),
    "recovery-garbage-first": _first(_RECOVERY, GARBAGE),
    "recovery-empty": _last(_RECOVERY, b""),
    "recovery-missing": _every(_RECOVERY, None),
    "recovery-zeros": _last(_RECOVERY, bytes(64)),
    "recovery-version-1": _last(_RECOVERY, b"1\n0\n"),
    "recovery-beyond": _set_point(_RECOVERY, "orders", 0, 500),
    "recovery-folder": lambda disks: _as_folder(disks.last / _RECOVERY),
    "log-start-folder": lambda disks: _as_folder(disks.last / _LOG_START),
    "watermark-folder": lambda disks: _as_folder(disks.last / _WATERMARK),
    "log-start-garbage": _last(_LOG_START, GARBAGE),
    "log-start-zeros": _last(_LOG_START, bytes(64)),
    "log-start-beyond": _set_point(_LOG_START, "orders", 0, 500),
    "log-start-inside": _set_point(_LOG_START, "orders", 0, 300),
    "log-start-negative": _set_point(_LOG_START, "orders", 0, -5),
    "watermark-garbage": _last(_WATERMARK, GARBAGE),
    "watermark-zeros": _last(_WATERMARK, bytes(64)),
    "watermark-missing": _every(_WATERMARK, None),
    "watermark-beyond": _set_point(_WATERMARK, "orders", 0, 500),
    "watermark-low": _set_point(_WATERMARK, "orders", 0, 100),
    "cleaner-garbage": _last(_CLEANER, GARBAGE),
    "log-torn": _cut("orders-0", LAST, 7),
    "log-torn-closed": _cut("events-1", SECOND, 7),
    "log-zeros": _append("events-1", LAST, bytes(5000)),
    "log-zeros-last": _append("events-0", LAST, bytes(5000)),
    "log-garbage": _append("events-1", LAST, GARBAGE),
    "log-half-batch": _append("events-1", LAST, struct.pack(">qi", 400, 1000) + bytes(40)),
    "log-crc-closed": _flip("events-1", SECOND, 1),
    "log-crc-last": _flip("events-1", LAST, 0),
    "log-crc-tail": _flip("orders-1", LAST, -1),
    "log-closed-empty": _in("events-1", f"{SECOND}.log", b""),
    "log-last-empty": _in("events-1", f"{LAST}.log", b""),
    "segment-gone": _drop_segment("events-1", SECOND),
    "segment-first-gone": _drop_segment("events-1", FIRST),
    "segment-last-gone": _drop_segment("events-1", LAST),
    "segments-all-gone": _drop_segment("events-1", FIRST, SECOND, THIRD, LAST),
    "log-file-gone": _without("events-1", f"{SECOND}.log"),
    "index-gone": _without("events-1", f"{SECOND}.index"),
    "index-last-gone": _without("events-1", f"{LAST}.index", f"{LAST}.timeindex"),
    "timeindex-gone": _without("events-1", f"{SECOND}.timeindex"),
    "index-garbage": _in("events-1", f"{SECOND}.index", GARBAGE),
    "index-bad": _bad_index,
    "index-preallocated": _preallocate_index,
    "timeindex-garbage": _in("events-1", f"{SECOND}.timeindex", GARBAGE),
    "txnindex-garbage": _in("orders-0", f"{LAST}.txnindex", GARBAGE),
    "txnindex-gone": _without("orders-0", f"{LAST}.txnindex"),
    "producers-garbage": _in("orders-0", f"{408:020d}.snapshot", GARBAGE),
    "producers-gone": _without("orders-0", f"{408:020d}.snapshot"),
    "epochs-garbage": _in("orders-0", "leader-epoch-checkpoint", GARBAGE),
    "epochs-empty": _in("orders-0", "leader-epoch-checkpoint", b""),
    "epochs-gone": _without("orders-0", "leader-epoch-checkpoint"),
    "epochs-zeros": _in("orders-1", "leader-epoch-checkpoint", bytes(30)),
    "index-folder": _folder_in("events-0", f"{SECOND}.index"),
    "index-folder-last": _folder_in("events-0", f"{LAST}.index"),
    "timeindex-folder": _folder_in("events-0", f"{SECOND}.timeindex"),
    "timeindex-folder-last": _folder_in("events-0", f"{LAST}.timeindex"),
    "txnindex-folder": _folder_in("orders-0", f"{LAST}.txnindex"),
    "txnindex-folder-closed": lambda d: (d["events-0"] / f"{SECOND}.txnindex").mkdir(),
    "producers-folder": _folder_in("orders-0", f"{408:020d}.snapshot"),
    "epochs-above-first": _in("orders-0", "leader-epoch-checkpoint", b"0\n1\n0 40\n"),
    "epochs-folder": _folder_in("orders-1", "leader-epoch-checkpoint"),
    "appledouble": _new("events-1", f"._{SECOND}.log", GARBAGE),
    "name-invalid": _new("events-1", "nonsense.log", b""),
    "name-invalid-last": _new("events-0", "nonsense.log", b""),
    "name-unpadded": _rename("events-1", f"{SECOND}.log", "130.log"),
    "name-other": _new("events-1", "notes.txt", b"mine"),
    "log-compressed": _compressed("events-1", SECOND),
    "log-compressed-first": _compressed("events-0", FIRST),
    "log-compressed-many": _compressed("events-1", FIRST, SECOND, THIRD),
    "leftover-swap": _duplicate_file("events-1", f"{SECOND}.log", f"{SECOND}.log.swap"),
    "leftover-cleaned": _duplicate_file("events-1", f"{SECOND}.log", f"{SECOND}.log.cleaned"),
    "leftover-deleted": _rename("events-1", f"{SECOND}.log", f"{SECOND}.log.deleted"),
    "file-linked": lambda disks: _link_file(disks, "events-1", f"{SECOND}.log"),
    "folder-in-partition": lambda disks: (disks["events-1"] / "sub").mkdir(),
    "folder-as-log": lambda disks: (disks["events-1"] / f"{500:020d}.log").mkdir(),
    "quorum-gone": _without(METADATA, "quorum-state"),
    "quorum-empty": _in(METADATA, "quorum-state", b""),
    "quorum-garbage": _in(METADATA, "quorum-state", GARBAGE),
    "quorum-zeros": _in(METADATA, "quorum-state", bytes(100)),
    "quorum-folder": _folder_in(METADATA, "quorum-state"),
    "metadata-torn": _cut(METADATA, FIRST, 7),
    "metadata-half": _metadata_half,
    "metadata-crc": lambda disks: _flip(METADATA, FIRST, len(_metadata_batches(disks)) // 2)(disks),
    "metadata-garbage-tail": _append(METADATA, FIRST, GARBAGE),
    "metadata-empty": _in(METADATA, f"{FIRST}.log", b""),
    "metadata-log-gone": _drop_segment(METADATA, FIRST),
    "metadata-gone": lambda disks: shutil.rmtree(disks[METADATA]),
    "metadata-twice": lambda disks: _copy(disks, METADATA, disks.elsewhere(METADATA) / METADATA),
    "metadata-id-gone": _without(METADATA, "partition.metadata"),
    "metadata-id-garbage": _in(METADATA, "partition.metadata", GARBAGE),
    "metadata-epochs-garbage": _in(METADATA, "leader-epoch-checkpoint", GARBAGE),
    "metadata-epochs-gone": _without(METADATA, "leader-epoch-checkpoint"),
    "metadata-index-gone": _without(METADATA, f"{FIRST}.index"),
    "metadata-name-invalid": _new(METADATA, "nonsense.log", b""),
    "metadata-snapshot-gone": _without(METADATA, f"{FIRST}-0000000000.checkpoint"),
    "metadata-snapshot-garbage": _in(METADATA, f"{FIRST}-0000000000.checkpoint", GARBAGE),
    "metadata-snapshot-empty": _in(METADATA, f"{FIRST}-0000000000.checkpoint", b""),
    "metadata-snapshot-part": _new(METADATA, f"{FIRST}-0000000001.checkpoint.part", GARBAGE),
    "metadata-snapshot-torn": _shorten(METADATA, _SNAPSHOT, 7),
    "metadata-unstarted": _never_started,
    "metadata-unstarted-torn": _never_started_torn,
    "metadata-unstarted-no-snapshot": _never_started_without_snapshot,
    "bootstrap-garbage": _first("bootstrap.checkpoint", GARBAGE),
    "config-refused": _config(ResourceType.TOPIC, "orders", segment_bytes="1024"),
    "config-refused-no-folder": _without_folder,
    "config-unknown": _config(ResourceType.TOPIC, "orders", message_format_version="3.0"),
    "config-default-refused": _config(
        ResourceType.BROKER, "", log_segment_bytes="1024", log_retention_ms="86400000000"
    ),
    "config-default-contradicts": _config(ResourceType.BROKER, "", log_roll_ms="0"),
    "cordoned": _cordon,
    "cordoned-dropped": _drop_cordoned,
    "disk-dropped": _drop_disk,
}


def _metadata_batches(disks: Disks) -> list[tuple[int, int]]:
    return batch_positions(_metadata_log(disks).read_bytes())


def _link_file(disks: Disks, partition: str, file: str) -> None:
    path = _require(disks[partition] / file)
    target = disks.base / "elsewhere-file"
    shutil.move(path, target)
    path.symlink_to(target)


def _taken(path: Path, mode: int) -> None:
    os.chown(_require(path), 0, 0)
    path.chmod(mode)


def _taken_in(partition: str, file: str, mode: int = 0o644) -> Happen:
    return lambda disks: _taken(disks[partition] / file, mode)


def _taken_last(file: str, mode: int = 0o644) -> Happen:
    return lambda disks: _taken(disks.last / file, mode)


def _taken_lock(disks: Disks) -> None:
    (disks.last / ".lock").touch()
    _taken(disks.last / ".lock", 0o644)


# What a command as root leaves behind: files that the broker, as another user, may not open.
ACCIDENTS_OF_OWNERS: Final[dict[str, Happen]] = {
    "owner-log": _taken_in("events-0", f"{SECOND}.log"),
    "owner-log-last": _taken_in("events-0", f"{LAST}.log"),
    "owner-index": _taken_in("events-0", f"{SECOND}.index"),
    "owner-index-unreadable": _taken_in("events-0", f"{SECOND}.index", 0o600),
    "owner-index-last": _taken_in("events-0", f"{LAST}.index"),
    "owner-snapshot": _taken_in("events-0", f"{400:020d}.snapshot", 0o600),
    "owner-snapshot-old": _taken_in("events-0", f"{130:020d}.snapshot", 0o600),
    "owner-txnindex": _taken_in("orders-0", f"{LAST}.txnindex"),
    "owner-lock": _taken_lock,
    "owner-delete": lambda disks: _taken(
        _copy(disks, "events-1", disks.last / f"gone-0{DELETE}"), 0o755
    ),
    "owner-epochs": _taken_in("events-0", "leader-epoch-checkpoint"),
    "owner-epochs-unreadable": _taken_in("events-0", "leader-epoch-checkpoint", 0o600),
    "owner-topic-id": _taken_in("events-0", "partition.metadata"),
    "owner-topic-id-unreadable": _taken_in("events-0", "partition.metadata", 0o600),
    "owner-partition": lambda disks: _taken(disks["events-0"], 0o755),
    "owner-partition-unreadable": lambda disks: _taken(disks["events-0"], 0o700),
    "owner-root": lambda disks: _taken(disks.last, 0o755),
    "owner-root-unreadable": lambda disks: _taken(disks.last, 0o700),
    "owner-meta": _taken_last("meta.properties"),
    "owner-meta-unreadable": _taken_last("meta.properties", 0o600),
    "owner-recovery": _taken_last(_RECOVERY),
    "owner-recovery-unreadable": _taken_last(_RECOVERY, 0o600),
    "owner-watermark-unreadable": _taken_last(_WATERMARK, 0o600),
    "owner-log-start-unreadable": _taken_last(_LOG_START, 0o600),
    "owner-marker": _taken_last(_MARKER, 0o600),
    "owner-metadata-log": _taken_in(METADATA, f"{FIRST}.log"),
    "owner-metadata-snapshot": _taken_in(METADATA, f"{FIRST}-0000000000.checkpoint", 0o600),
    "owner-quorum": _taken_in(METADATA, "quorum-state"),
    "owner-quorum-unreadable": _taken_in(METADATA, "quorum-state", 0o600),
    "owner-metadata": lambda disks: _taken(disks[METADATA], 0o755),
}
