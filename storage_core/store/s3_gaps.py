"""Upload files with gaps to S3; S3 copies the missing ranges. The upload names the object and bytes
for each gap.

The object is put together of parts, of which some are sent and some copied. A part has at least
5 MiB, but for the last one: where fewer bytes lie before a gap, some of it are fetched and sent. A
store that refuses to copy parts is sent every byte, fetched from it before.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from storage_core.errors import ChangedWhileReadError, StorageError
from storage_core.local_files import open_file
from storage_core.store.copying import CopiedRange
from storage_core.store.local import storage_errors
from storage_core.store.object_files import BLOCK_BYTES, EntryReader
from storage_core.store.object_store import ObjectStore
from storage_core.store.s3_objects import Part, S3ObjectStore, cut_into_parts, error_status, quoted

# S3's minimum for every part but the last.
LEAST_PART_BYTES: Final = 5 << 20
# S3 answers a copy request when all of it is done.
_MOST_COPIED_BYTES: Final = 128 << 20
# Answers of a store that does not know the request, or refuses it. For a missing or changed object
# (404, 412) a HEAD request tells.
_REFUSALS: Final = frozenset({400, 403, 405, 501})

_log: Final = logging.getLogger(__name__)


def put_with_gaps(target: ObjectStore, key: str, path: str, gaps: Sequence[CopiedRange]) -> str:
    """Create an object from a local file with gaps; return its tag.

    Args:
        target: The managed root, on S3.
        path: Path of the file; gaps may be filled in it.
        gaps: All of them, in order, each of at least ``gaps.LEAST_GAP_BYTES``.
    """
    reader = EntryReader(target)
    store = _on_s3(target)
    copied, edges = _trim(gaps)
    with storage_errors(Path(path)):
        descriptor = open_file(Path(path), os.O_RDWR)
    with os.fdopen(descriptor, "r+b") as file:
        for gap in edges:
            _fill(file, path, gap, reader)
        size_bytes = os.fstat(descriptor).st_size
        try:
            etag = store.put_parts(key, file, list(_parts(size_bytes, copied, reader)))
        except StorageError as error:
            _require_versions(copied, reader)
            if error_status(error) not in _REFUSALS:
                raise
            _log.warning("the store copies no parts, so all bytes are sent: %s", error)
            for gap in copied:
                _fill(file, path, gap, reader)
        else:
            # Not every server obeys the condition on what it copies.
            _require_versions(copied, reader)
            return etag
    return store.put_file(key, path)


def _trim(gaps: Sequence[CopiedRange]) -> tuple[list[CopiedRange], list[CopiedRange]]:
    """Return the ranges to copy, and their edges to send. An edge is sent along with bytes
    before it, too few for a part."""
    copied, edges = [], []
    end = 0
    for gap in gaps:
        before = gap.position - end
        lacking = LEAST_PART_BYTES - before if 0 < before < LEAST_PART_BYTES else 0
        if lacking:
            edges.append(_cut(gap, 0, lacking))
        copied.append(_cut(gap, lacking, gap.source.size_bytes - lacking))
        end = gap.end_position
    return copied, edges


def _cut(gap: CopiedRange, first: int, size_bytes: int) -> CopiedRange:
    source = replace(gap.source, start=gap.source.start + first, size_bytes=size_bytes)
    return CopiedRange(position=gap.position + first, source=source)


def _parts(size_bytes: int, copied: Sequence[CopiedRange], reader: EntryReader) -> Iterator[Part]:
    """Yield the parts of a file of so many bytes."""
    end = 0
    for gap in copied:
        yield from cut_into_parts(end, gap.position)
        for part in cut_into_parts(gap.position, gap.end_position, _MOST_COPIED_BYTES):
            piece = _cut(gap, part.start - gap.position, part.size_bytes)
            yield replace(part, copied=_arguments(piece, reader))
        end = gap.end_position
    yield from cut_into_parts(end, size_bytes)


def _arguments(gap: CopiedRange, reader: EntryReader) -> dict[str, Any]:
    """Return what UploadPartCopy is told of a source."""
    source = gap.source
    objects, key = reader.place_of(source)
    place = _on_s3(objects)
    return {
        "CopySource": {"Bucket": place.bucket, "Key": place.whole_key(key)},
        "CopySourceIfMatch": quoted(source.etag),
        "CopySourceRange": f"bytes={source.start}-{source.start + source.size_bytes - 1}",
    }


def _on_s3(objects: ObjectStore) -> S3ObjectStore:
    if not isinstance(objects, S3ObjectStore):
        raise TypeError(f"expected a store on S3, found {objects.url}")
    return objects


def _fill(file: BinaryIO, path: str, gap: CopiedRange, reader: EntryReader) -> None:
    """Fetch the bytes that belong into a gap, and write them there."""
    objects, key = reader.place_of(gap.source)
    for first in range(0, gap.source.size_bytes, BLOCK_BYTES):
        block = np.empty(min(BLOCK_BYTES, gap.source.size_bytes - first), np.uint8)
        start = gap.source.start + first
        if objects.read_into(key, start, block, etag=gap.source.etag) < block.size:
            raise StorageError(f"{objects.url}/{key}", f"ends before byte {start + block.size}")
        with storage_errors(Path(path)):
            file.seek(gap.position + first)
            file.write(block.data)
            file.flush()


def _require_versions(gaps: Sequence[CopiedRange], reader: EntryReader) -> None:
    """Check that the copies' source objects are unchanged, by one HEAD each."""
    sources = {(gap.source.key, gap.source.etag): gap.source for gap in gaps}
    for source in sources.values():
        objects, key = reader.place_of(source)
        etag = objects.head(key).etag
        if etag != source.etag:
            raise ChangedWhileReadError(
                f"{objects.url}/{key}", f"version {source.etag}", f"version {etag}"
            )
