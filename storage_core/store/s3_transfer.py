"""Large bodies from and to S3: ranges that survive a broken connection, uploads in parts.

botocore repeats requests, but not the reading of an answer's body; what a broken body leaves out
is asked for again here, and only of the version that the first part came from.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

from aiohttp import ClientError
from botocore.exceptions import BotoCoreError, HTTPClientError, IncompleteReadError
from s3fs import S3FileSystem

from storage_core.errors import StorageError

# One request up to this; beyond, parts of this size, a few at a time.
PART_BYTES: Final = 16 << 20
PARTS_AT_ONCE: Final = 4
MAX_PARTS: Final = 10_000
# How often a body may break off, and the first wait, which doubles.
_BODY_ATTEMPTS: Final = 8
BODY_WAIT_SECONDS = 0.1
_BODY_CHUNK_BYTES: Final = 1 << 20
_PAST_THE_END_CODES: Final = frozenset({"416", "InvalidRange"})
_BROKEN_BODY: Final = (
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ConnectionError,
    TimeoutError,
)


def error_code(error: BaseException | None) -> str:
    """Return S3's own code for an error that s3fs raised, following its causes; else nothing."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def tag_of(answer: Mapping[str, Any]) -> str:
    """Return the tag that an answer of S3 carries, without its quotes."""
    return str(answer["ETag"]).strip('"')


def quoted(etag: str) -> str:
    """Return a tag as HTTP wants it."""
    return f'"{etag}"'


async def read_range(
    filesystem: S3FileSystem, bucket: str, key: str, start: int, view: memoryview, etag: str = ""
) -> int:
    """Fill view from position start of an object on.

    Args:
        filesystem: Where the bucket is.
        bucket: Its name.
        key: Of the object, in the bucket.
        start: Position of the first byte.
        view: Where the bytes go; what lies behind the object's end stays as it was.
        etag: Version that has to be read; empty for whichever there is, but only one.

    Returns:
        How many bytes there were.

    Raises:
        OSError: As s3fs translates what S3 answers.
        StorageError: The body broke off again and again.
    """
    filled = 0
    condition = {"IfMatch": quoted(etag)} if etag else {}
    for attempt in range(_BODY_ATTEMPTS):
        if attempt:
            await asyncio.sleep(min(BODY_WAIT_SECONDS * 2**attempt, 5.0))
        try:
            answer = await filesystem._call_s3(  # noqa: SLF001 - call_s3 as a coroutine
                "get_object",
                Bucket=bucket,
                Key=key,
                Range=f"bytes={start + filled}-{start + len(view) - 1}",
                **condition,
            )
        except OSError as error:
            if error_code(error) in _PAST_THE_END_CODES:
                return filled
            raise
        condition = {"IfMatch": answer["ETag"]}
        wanted = min(len(view), filled + int(answer["ContentLength"]))
        filled += await _read_body(answer["Body"], view[filled:wanted])
        if filled == wanted:
            return filled
    raise StorageError(
        f"s3://{bucket}/{key}",
        f"the body broke off {_BODY_ATTEMPTS} times, the last time at byte {start + filled}",
    )


async def read_whole(
    filesystem: S3FileSystem, bucket: str, key: str, limit_bytes: int
) -> tuple[bytes, str]:
    """Return an object of at most limit_bytes, and its tag; errors as of read_range."""
    answer = await filesystem._call_s3(  # noqa: SLF001 - call_s3 as a coroutine
        "get_object", Bucket=bucket, Key=key
    )
    size, etag = int(answer["ContentLength"]), tag_of(answer)
    if size > limit_bytes:
        answer["Body"].close()
        raise StorageError(
            f"s3://{bucket}/{key}",
            f"has {size} bytes and is longer than the {limit_bytes} bytes it may have",
        )
    content = bytearray(size)
    view = memoryview(content)
    filled = await _read_body(answer["Body"], view)
    if filled < size:
        filled += await read_range(filesystem, bucket, key, filled, view[filled:], etag)
    return bytes(content[:filled]), etag


async def _read_body(body: Any, view: memoryview) -> int:
    """Fill view from a body and return how much came before it ended or broke off."""
    filled = 0
    try:
        while filled < len(view):
            chunk = await body.read(min(_BODY_CHUNK_BYTES, len(view) - filled))
            if not chunk:
                break
            view[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
    except _BROKEN_BODY:
        return filled
    finally:
        body.close()
    return filled


async def upload_parts(
    filesystem: S3FileSystem, bucket: str, key: str, file: BinaryIO, size_bytes: int
) -> str:
    """Upload an open local file in parts, a few at once, and return the object's tag.

    A lost answer to the last request is settled by looking at the object; of an upload that
    failed, nothing stays behind unless this process dies.

    Raises:
        OSError: As s3fs translates what S3 answers, or the file cannot be read.
        BotoCoreError: S3 was not reached.
    """
    part_bytes = max(PART_BYTES, -(-size_bytes // MAX_PARTS))
    call = filesystem._call_s3  # noqa: SLF001 - call_s3 as a coroutine
    names = {"Bucket": bucket, "Key": key}
    names["UploadId"] = (await call("create_multipart_upload", **names))["UploadId"]
    parts: list[dict[str, Any]] = []
    try:
        while chunks := [chunk for _ in range(PARTS_AT_ONCE) if (chunk := file.read(part_bytes))]:
            parts += await _upload_some(filesystem, names, chunks, len(parts) + 1)
        answer = await call("complete_multipart_upload", **names, MultipartUpload={"Parts": parts})
    except (OSError, BotoCoreError):
        etag = await _find_upload(filesystem, bucket, key, size_bytes, len(parts))
        if etag:
            return etag
        await _abort(filesystem, names)
        raise
    return tag_of(answer)


async def _upload_some(
    filesystem: S3FileSystem, names: Mapping[str, str], chunks: Sequence[bytes], first: int
) -> list[dict[str, Any]]:
    answers = await asyncio.gather(
        *(
            filesystem._call_s3(  # noqa: SLF001 - call_s3 as a coroutine
                "upload_part", **names, PartNumber=number, Body=chunk
            )
            for number, chunk in enumerate(chunks, first)
        ),
        # A part that arrives after the upload was dropped would stay, unseen and paid for.
        return_exceptions=True,
    )
    parts = []
    for number, answer in enumerate(answers, first):
        if isinstance(answer, BaseException):
            raise answer
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    return parts


async def _find_upload(
    filesystem: S3FileSystem, bucket: str, key: str, size_bytes: int, part_count: int
) -> str:
    """Return the tag of an object that came of so many parts and has that size, else nothing."""
    try:
        facts = await filesystem._call_s3(  # noqa: SLF001 - call_s3 as a coroutine
            "head_object", Bucket=bucket, Key=key
        )
    except (OSError, BotoCoreError):
        return ""
    etag = tag_of(facts)
    is_ours = int(facts["ContentLength"]) == size_bytes and etag.endswith(f"-{part_count}")
    return etag if is_ours else ""


async def _abort(filesystem: S3FileSystem, names: Mapping[str, str]) -> None:
    """Drop the parts of a failed upload; a bucket's lifecycle rule does that for what stays."""
    try:
        await filesystem._call_s3(  # noqa: SLF001 - call_s3 as a coroutine
            "abort_multipart_upload", **names
        )
    except (OSError, BotoCoreError):
        return
