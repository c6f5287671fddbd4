"""Objects of an S3 bucket, reached through s3fs.

Credentials, region, endpoint and proxies are found as the AWS tools find them: environment, shared
config and credential files, instance roles. Requests are repeated by botocore's own retry mode
and by nothing else: s3fs's second layer around it is switched off, since the two multiply. Only
what botocore cannot repeat is asked for again here: the rest of a body that broke off.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
from aiobotocore.session import AioSession
from aiohttp import ClientError
from botocore.exceptions import BotoCoreError, HTTPClientError, IncompleteReadError
from fsspec.asyn import sync
from numpy.typing import NDArray
from s3fs import S3FileSystem

from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    ObjectNotFoundError,
    StorageError,
)
from storage_core.local_files import open_file
from storage_core.store.local import storage_errors
from storage_core.store.object_store import (
    DEFAULT_LIMIT_BYTES,
    ObjectInfo,
    UnfinishedUpload,
    settle_write,
    validate_key,
    validate_prefix,
)
from storage_core.store.requests import REQUESTS, Requests

# Read S3 ranges across broken connections; upload large files in parts.
#
# botocore repeats requests, but not the reading of an answer's body; what a broken body leaves out
# is asked for again here, and only of the version that the first part came from.

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


DELETE_AT_ONCE: Final = 1000
# Attempts of botocore for each request, the first one included; the environment may set another
# number.
_MAX_ATTEMPTS: Final = 8
_CONNECTIONS: Final = 64
_CONNECT_SECONDS: Final = 10
# It also bounds the time of a part on a slow line.
_READ_SECONDS: Final = 60
_CONFLICT_ATTEMPTS: Final = 5
_REFUSED_CODES: Final = frozenset({"412", "PreconditionFailed"})
_CONFLICT_CODES: Final = frozenset({"409", "ConditionalRequestConflict"})


class S3ObjectStore:
    """The objects of a bucket whose keys begin with a prefix.

    Args:
        url: ``s3://bucket`` or ``s3://bucket/prefix``.
        filesystem: An ``s3fs.S3FileSystem``; None for one made from the environment.
    """

    def __init__(self, url: str, filesystem: Any = None) -> None:
        path = url.partition("://")[2].strip("/")
        # The settings that all AWS tools share.
        settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
        self._fs = filesystem or open_filesystem(os.getpid(), settings)
        self._bucket, prefix, _ = self._fs.split_path(path)
        self._prefix = f"{prefix}/" if prefix else ""
        self._url = f"s3://{path}"

    @property
    def url(self) -> str:
        """Where the keys begin."""
        return self._url

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return str(self._bucket)

    def whole_key(self, key: str) -> str:
        """Return a key as the bucket has it."""
        return self._prefix + validate_key(key)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call an S3 operation on this bucket by botocore's method name."""
        try:
            return self._fs.call_s3(method, Bucket=self._bucket, **arguments)
        except BotoCoreError as error:
            raise StorageError(self._url, f"{method}: {error}") from error

    def get(self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
        """Return a small object whole."""
        return self.get_with_etag(key, limit_bytes=limit_bytes)[0]

    def get_with_etag(
        self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> tuple[bytes, str]:
        """Return a small object whole, and the tag of the same version."""
        with self._errors(key, ""):
            return cast(tuple[bytes, str], self._sync(read_whole, key, limit_bytes))

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object."""
        target = np.empty(size_bytes, np.uint8)
        return target[: self.read_into(key, start, target, etag=etag)].tobytes()

    def read_into(self, key: str, start: int, target: NDArray[np.uint8], *, etag: str = "") -> int:
        """Fill target from position start on; return the number of bytes."""
        if not target.size:
            return 0
        with self._errors(key, etag):
            return cast(int, self._sync(read_range, key, start, target.data, etag))

    def put(self, key: str, content: bytes) -> str:
        """Create or replace an object by one PUT."""
        with self._errors(key):
            return tag_of(self.call("put_object", Key=self.whole_key(key), Body=content))

    def put_file(self, key: str, path: str) -> str:
        """Create or replace an object from a local file, perhaps in parts."""
        with storage_errors(Path(path)):
            descriptor = open_file(Path(path))
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            if size <= PART_BYTES:
                with storage_errors(Path(path)):
                    content = file.read()
                return self.put(key, content)
            return self.put_parts(key, file, cut_into_parts(0, size))

    def put_parts(self, key: str, file: BinaryIO, parts: Sequence[Part]) -> str:
        """Create or replace an object from its ordered parts; return its tag. Of an upload that
        failed nothing stays behind unless this process dies."""
        with self._errors(key):
            return cast(str, self._sync(upload_parts, key, file, parts))

    def put_if_absent(self, key: str, content: bytes) -> str:
        """Create an object unless there is one."""
        return self._put_if(key, content, "", {"IfNoneMatch": "*"})

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        """Replace that version of an object."""
        return self._put_if(key, content, etag, {"IfMatch": quoted(etag)})

    def head(self, key: str) -> ObjectInfo:
        """Return size, tag and time of an object without reading it."""
        with self._errors(key):
            facts = self.call("head_object", Key=self.whole_key(key))
            return ObjectInfo(
                key=key,
                size_bytes=int(facts["ContentLength"]),
                etag=tag_of(facts),
                modified_ms=_milliseconds(facts["LastModified"]),
                storage_class=facts.get("StorageClass", "STANDARD"),
            )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below a key prefix, in order of keys. Listings come by pages."""
        for page in self._pages(validate_prefix(prefix), ""):
            yield from self._infos(page)

    def list_stretch(self, first: str, last: str) -> Iterator[ObjectInfo]:
        """Yield every object from first to last folder, in key order. Listings come by pages."""
        validate_prefix(last)
        for page in self._pages("", "", after=validate_prefix(first)):
            for info in self._infos(page):
                if info.key > last and not info.key.startswith(last):
                    return
                yield info

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names directly below a folder that have something below themselves."""
        start = len(self._prefix) + len(prefix)
        for page in self._pages(validate_prefix(prefix), "/"):
            for entry in page.get("CommonPrefixes", ()):
                yield entry["Prefix"][start:].rstrip("/")

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder, in order of keys."""
        for page in self._pages(validate_prefix(prefix), "/"):
            yield from self._infos(page)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand a request."""
        for first in range(0, len(keys), DELETE_AT_ONCE):
            some = [{"Key": self.whole_key(key)} for key in keys[first : first + DELETE_AT_ONCE]]
            with self._errors(keys[first]):
                answer = self.call("delete_objects", Delete={"Objects": some, "Quiet": True})
            for failure in answer.get("Errors", ()):
                raise StorageError(
                    f"s3://{self._bucket}/{failure.get('Key')}",
                    f"was not deleted: {failure.get('Code')}: {failure.get('Message')}",
                )

    def abort_uploads(self, *, before_ms: int) -> int:
        """Drop the parts of unfinished uploads begun before a time. A killed process leaves such
        parts; no listing shows them, but they cost money.

        Returns:
            How many uploads there were.
        """
        stale = [upload for upload in self.list_uploads() if upload.began_ms < before_ms]
        for upload in stale:
            key = self._prefix + upload.key
            with self._errors(key):
                self.call("abort_multipart_upload", Key=key, UploadId=upload.upload_id)
        return len(stale)

    def list_uploads(self) -> Iterator[UnfinishedUpload]:
        """Yield the unfinished uploads."""
        for page in self._upload_pages():
            for upload in page.get("Uploads", ()):
                yield UnfinishedUpload(
                    key=upload["Key"][len(self._prefix) :],
                    upload_id=upload["UploadId"],
                    began_ms=_milliseconds(upload["Initiated"]),
                )

    def _upload_pages(self) -> Iterator[Mapping[str, Any]]:
        arguments: dict[str, Any] = {"Prefix": self._prefix}
        while True:
            with self._errors(""):
                page = self.call("list_multipart_uploads", **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["KeyMarker"] = page["NextKeyMarker"]
            arguments["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _pages(
        self, prefix: str, delimiter: str, *, after: str = ""
    ) -> Iterator[Mapping[str, Any]]:
        arguments: dict[str, Any] = {"Prefix": self._prefix + prefix}
        if after:
            arguments["StartAfter"] = self._prefix + after
        if delimiter:
            arguments["Delimiter"] = delimiter
        while True:
            with self._errors(prefix):
                page = self.call("list_objects_v2", **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _infos(self, page: Mapping[str, Any]) -> Iterator[ObjectInfo]:
        for entry in page.get("Contents", ()):
            key = entry["Key"][len(self._prefix) :]
            # Consoles write this to show an empty folder.
            if key and not key.endswith("/"):
                yield ObjectInfo(
                    key=key,
                    size_bytes=int(entry["Size"]),
                    etag=tag_of(entry),
                    modified_ms=_milliseconds(entry["LastModified"]),
                    storage_class=entry.get("StorageClass", "STANDARD"),
                )

    def _put_if(self, key: str, content: bytes, etag: str, condition: Mapping[str, str]) -> str:
        """Write under a condition; settle any unclear answer by reading back. Any answer but
        success is unclear."""
        for attempt in range(_CONFLICT_ATTEMPTS):
            try:
                with self._errors(key):
                    answer = self.call(
                        "put_object", Key=self.whole_key(key), Body=content, **condition
                    )
                    return tag_of(answer)
            except StorageError as error:
                code = error_code(error)
                # Two conditional writes met; S3 carried out neither and asks for another attempt.
                if code in _CONFLICT_CODES and attempt < _CONFLICT_ATTEMPTS - 1:
                    continue
                try:
                    return settle_write(self, key, content, etag)
                except ConditionFailedError as conflict:
                    # Nobody changed it, and it was not refused: the write did not arrive.
                    if conflict.actual == etag and code not in _REFUSED_CODES:
                        raise error from error.__cause__
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _sync(self, action: Callable[..., Awaitable[Any]], key: str, *arguments: Any) -> Any:
        return sync(self._fs.loop, action, self._fs, self._bucket, self.whole_key(key), *arguments)

    @contextmanager
    def _errors(self, key: str, etag: str | None = None) -> Iterator[None]:
        """Turn errors of s3fs and botocore into errors that name the object.

        Args:
            etag: For a read, the wanted version; empty for the one at the read's beginning.
        """
        path = f"{self._url}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectNotFoundError(path, str(error) or "there is no such object") from error
        except OSError as error:
            if etag is not None and error_code(error) in _REFUSED_CODES:
                wanted = f"version {etag}" if etag else "the version of the first part"
                raise ChangedWhileReadError(path, wanted, "another one") from error
            reason = error_code(error) or type(error).__name__
            raise StorageError(path, f"{reason}: {error.strerror or error}") from error
        except BotoCoreError as error:
            raise StorageError(path, str(error)) from error


@lru_cache(maxsize=2)
def open_filesystem(process: int, environment: tuple[tuple[str, str], ...]) -> S3FileSystem:
    """Return the s3fs filesystem of this process for these settings, made once.

    Args:
        process: Its number: connections do not survive a fork.
    """
    del process
    config: dict[str, Any] = {
        "max_pool_connections": _CONNECTIONS,
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": _READ_SECONDS,
    }
    if not {"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"} & dict(environment).keys():
        config["retries"] = {"mode": "standard", "total_max_attempts": _MAX_ATTEMPTS}
    session = AioSession()
    session.register("after-call.s3", _count)
    filesystem = S3FileSystem(
        config_kwargs=config, session=session, use_listings_cache=False, skip_instance_cache=True
    )
    # botocore repeats requests; repeating them here would multiply the attempts.
    filesystem.retries = 1
    return filesystem


def _count(model: Any, parsed: Mapping[str, Any], **_: Any) -> None:
    if model.name.startswith("List"):
        REQUESTS.add(Requests(listings=1))
    elif model.name == "GetObject":
        REQUESTS.add(Requests(reads=1, read_bytes=parsed.get("ContentLength", 0)))
    else:
        REQUESTS.add(Requests(others=1))


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
