"""List files and ids of planned partitions, for saved plans."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from pylog_spark.rows import Binary, Text, column
from pylog_spark.tasks.message import TaskMessage, attempt
from storage_core.commit.fingerprint import is_scratch
from storage_core.json_values import to_json
from storage_core.store import LocalStore, open_store
from storage_core.store.log_identity import read_identity

# Name, size and modification time of a file.
FileFacts = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint(TaskMessage):
    """What the files of a planned partition look like."""

    files: Binary = column("names, sizes and times, zlib over JSON; null with an error")
    identity: Text = column("topic id and cluster id, as JSON; null but for a local directory")


def fingerprint_partitions(items: Iterable[tuple[int, str]]) -> Iterator[Fingerprint]:
    """List partitions.

    Args:
        items: Ordinal and location of each.
    """
    for ordinal, location in items:
        yield attempt(Fingerprint(ordinal=ordinal), partial(_list, location))


def _list(location: str, head: Fingerprint) -> Fingerprint:
    store = open_store(location)
    facts = [
        (file.name, file.size_bytes, file.modified_ms)
        for file in store.list_files()
        if not is_scratch(file.name)
    ]
    # Of a managed root the manifest's generation says that it is the same.
    identity = to_json(read_identity(store)) if isinstance(store, LocalStore) else None
    return replace(head, files=encode_files(facts), identity=identity)


def encode_files(files: Iterable[FileFacts]) -> bytes:
    """Return a listing compressed for travel: its names repeat themselves."""
    return zlib.compress(json.dumps(list(files), separators=(",", ":")).encode())


def decode_files(content: bytes | None) -> tuple[FileFacts, ...]:
    """Return the listing that ``encode_files`` wrote, none for None."""
    if content is None:
        return ()
    return tuple((name, size, time) for name, size, time in json.loads(zlib.decompress(content)))


def digest_operations(text: str) -> str:
    """Return a digest of operations in JSON, however they are spaced."""
    canonical = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
