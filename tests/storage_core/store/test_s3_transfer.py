"""Uploads to S3 by parts, before a server that only counts them."""

import asyncio
import io
from types import SimpleNamespace

import pytest

from storage_core.store import s3_objects as s3_transfer
from storage_core.store.s3_objects import cut_into_parts, upload_parts


@pytest.mark.parametrize(
    ("size_bytes", "sizes"),
    [
        pytest.param(12, [4, 4, 4], id="parts of the usual size"),
        pytest.param(13, [5, 5, 3], id="larger ones, for there may be no more of them"),
    ],
)
def test_an_object_has_no_more_parts_than_it_may(monkeypatch, size_bytes, sizes):
    monkeypatch.setattr(s3_transfer, "PART_BYTES", 4)
    monkeypatch.setattr(s3_transfer, "MAX_PARTS", 3)
    parts: dict[int, bytes] = {}

    async def call(method, **arguments):
        if method == "upload_part":
            parts[arguments["PartNumber"]] = arguments["Body"]
        return {"UploadId": "1", "ETag": '"tag-3"'}

    content = bytes(range(size_bytes))
    filesystem = SimpleNamespace(_call_s3=call)
    asyncio.run(
        upload_parts(
            filesystem, "bucket", "key", io.BytesIO(content), cut_into_parts(0, size_bytes)
        )
    )
    assert [len(parts[number]) for number in sorted(parts)] == sizes
    assert b"".join(parts[number] for number in sorted(parts)) == content
