"""Read S3 ranges across broken connections; upload large files in parts.

botocore repeats requests, but not the reading of an answer's body; what a broken body leaves out
is asked for again here, and only of the version that the first part came from.
"""

import asyncio
import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from aiohttp import ClientError
from botocore.exceptions import BotoCoreError, HTTPClientError, IncompleteReadError
from s3fs import S3FileSystem

from storage_core.errors import StorageError

# One request up to this size; beyond it, a few parts of this size at a time.
PART_BYTES: Final = 16 << 20
PARTS_AT_ONCE: Final = 4
MAX_PARTS: Final = 10_000
# How often a body may break off, and the first pause, which doubles.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an object that is uploaded."""

    start: int
    size_bytes: int
    # The source for UploadPartCopy; None if its bytes are sent.
    copied: Mapping[str, Any] | None = None


def cut_into_parts(start: int, end: int, most_bytes: int | None = None) -> list[Part]:
    """Return a range of an object as parts of about one size. They are no more than S3 allows for
    one object.

    Args:
        most_bytes: How long a part may be, but for an object of very many; None for PART_BYTES.
    """
    size_bytes = end - start
    if not size_bytes:
        return []
    count = min(-(-size_bytes // (most_bytes or PART_BYTES)), MAX_PARTS)
    part_bytes = -(-size_bytes // count)
    return [
        Part(start=first, size_bytes=min(part_bytes, end - first))
        for first in range(start, end, part_bytes)
    ]


def error_code(error: BaseException | None) -> str:
    """Return S3's error code behind an error of s3fs, else "". The error's causes are searched,
    too."""
    return str(_response_of(error).get("Error", {}).get("Code", ""))


def error_status(error: BaseException | None) -> int:
    """Return the HTTP status behind an error of s3fs, else 0. The error's causes are searched,
    too."""
    return int(_response_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _response_of(error: BaseException | None) -> Mapping[str, Any]:
    """Return S3's answer behind an error or its causes, else {}."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, Mapping):
            return response
        error = error.__cause__
    return {}


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
        view: Where the bytes go; what lies behind the object's end stays as it was.
        etag: Version that has to be read; empty for whichever there is, but only one.

    Returns:
        How many bytes there were.
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
    """Return a whole object of at most limit_bytes, and its tag. Errors are those of read_range."""
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
    """Fill view from a body; return the number of bytes. There are fewer than view holds where
    the body ended or broke off."""
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
    filesystem: S3FileSystem, bucket: str, key: str, file: BinaryIO, parts: Sequence[Part]
) -> str:
    """Upload an open local file in concurrent parts; return its tag.

    A lost answer to the last request is settled by looking at the object; of an upload that
    failed, nothing stays behind unless this process dies.

    Args:
        file: Its bytes, but for those of parts that are copied.
        parts: All of it, in order.
    """
    call = filesystem._call_s3  # noqa: SLF001 - call_s3 as a coroutine
    names = {"Bucket": bucket, "Key": key}
    names["UploadId"] = (await call("create_multipart_upload", **names))["UploadId"]
    done: list[dict[str, Any]] = []
    try:
        for first in range(0, len(parts), PARTS_AT_ONCE):
            some = parts[first : first + PARTS_AT_ONCE]
            done += await _upload_some(filesystem, names, file, some, first + 1)
        answer = await call("complete_multipart_upload", **names, MultipartUpload={"Parts": done})
    except (OSError, BotoCoreError):
        size_bytes = sum(part.size_bytes for part in parts)
        etag = await _find_upload(filesystem, bucket, key, size_bytes, len(done))
        if etag:
            return etag
        await _abort(filesystem, names)
        raise
    return tag_of(answer)


async def _upload_some(
    filesystem: S3FileSystem,
    names: Mapping[str, str],
    file: BinaryIO,
    parts: Sequence[Part],
    first: int,
) -> list[dict[str, Any]]:
    numbers = range(first, first + len(parts))
    asked = [
        {"PartNumber": number, "Body": _read_part(file, part)}
        if part.copied is None
        else {"PartNumber": number, **part.copied}
        for number, part in zip(numbers, parts, strict=True)
    ]
    answers = await asyncio.gather(
        *(
            filesystem._call_s3(  # noqa: SLF001 - call_s3 as a coroutine
                "upload_part" if "Body" in each else "upload_part_copy", **names, **each
            )
            for each in asked
        ),
        # A part that arrives after the upload was dropped would stay invisible, and cost money.
        return_exceptions=True,
    )
    done = []
    for number, answer in zip(numbers, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        etag = answer.get("CopyPartResult", answer)["ETag"]
        done.append({"PartNumber": number, "ETag": etag})
    return done


def _read_part(file: BinaryIO, part: Part) -> bytes:
    file.seek(part.start)
    content = file.read(part.size_bytes)
    if len(content) < part.size_bytes:
        raise OSError(errno.EIO, f"the file ends after {part.start + len(content)} bytes")
    return content


async def _find_upload(
    filesystem: S3FileSystem, bucket: str, key: str, size_bytes: int, part_count: int
) -> str:
    """Return an object's tag if size and part count match, else ""."""
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
    """Drop the parts of a failed upload. A bucket's lifecycle rule does that for those that
    stay."""
    try:
        await filesystem._call_s3(  # noqa: SLF001 - call_s3 as a coroutine
            "abort_multipart_upload", **names
        )
    except (OSError, BotoCoreError):
        return
