"""The edges of a mirror's segment: its first and last batches alone say what it holds."""

from pathlib import Path

import pytest

from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import NO_LEADER_EPOCH, Codec
from storage_core.maintenance.ingest.plan import group_files, read_edges
from storage_core.store.listing import ListedFile
from storage_core.store.local import LocalStore
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry


@pytest.mark.parametrize("base", [3, 5])
def test_a_compressed_set_of_an_old_format_begins_at_its_segment(base: int, tmp_path: Path):
    """Its header has the offset of its last message alone."""
    messages = tuple(LegacyMessage(offset=offset) for offset in range(base, 6))
    content = encode_entry(LegacySet(messages=messages, codec=Codec.GZIP))
    (tmp_path / log_file(base)).write_bytes(content)
    file = ListedFile(name=log_file(base), size_bytes=len(content), modified_ms=0, etag="")
    (segment,) = group_files([file]).segments
    edges = read_edges(LocalStore(tmp_path), segment, lambda _: b"")
    assert (edges.first_offset, edges.next_offset) == (base, 6)
    assert (edges.first_epoch, edges.last_epoch) == (NO_LEADER_EPOCH, NO_LEADER_EPOCH)
