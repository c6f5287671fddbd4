"""An HTTP proxy in front of an S3 server: it counts what passes, and breaks what it is told to.

What s3fs, botocore and the store make of a fault is seen by what arrives at the server and what the
caller gets. Requests of other processes, Spark's workers, are counted like those of this one.
"""

import enum
import http.client
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.kit.wrapped_objects import kind_of_key
from tests.s3.permissions import Policy, absence_of, needs_of

_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})
_POSTS: Final = {"uploads": "CREATE_UPLOAD", "uploadId": "COMPLETE", "delete": "DELETE_MANY"}
_SLOW_DOWN: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_INTERNAL: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>InternalError</Code>'
    b"<Message>We encountered an internal error. Please try again.</Message></Error>"
)
_DENIED: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code>'
    b"<Message>Access Denied</Message></Error>"
)
_NOT_IMPLEMENTED: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>NotImplemented</Code>'
    b"<Message>A header implies functionality that is not implemented.</Message></Error>"
)
_ABSENT: Final = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>404</Code>'
    b"<Message>Not Found</Message></Error>"
)
_NOT_FOUND: Final = 404


class FaultKind(enum.Enum):
    """What goes wrong."""

    INTERNAL_ERROR = "500 instead of an answer; the server never saw the request"
    REFUSE = "501 instead of an answer: the server does not know such requests"
    DENY = "403 instead of an answer: the sender may not do that"
    ABSENT = "404 instead of an answer: the server has no such thing"
    SLOW_DOWN = "503 instead of an answer; the server never saw the request"
    SLOW = "the answer comes late"
    DROP_REQUEST = "the connection ends before the request is passed on"
    DROP_BODY = "the connection ends in the middle of the answer's body"
    LOSE_ANSWER = "the server obeys, and the connection ends without an answer"
    FAIL_AFTER = "the server obeys, and the answer is 500"
    STALE = "the first answer that the server gave to this request, again"


# What is answered in place of the server.
_ANSWERS: Final = {
    FaultKind.INTERNAL_ERROR: (500, _INTERNAL),
    FaultKind.REFUSE: (501, _NOT_IMPLEMENTED),
    FaultKind.DENY: (403, _DENIED),
    FaultKind.ABSENT: (404, _ABSENT),
    FaultKind.SLOW_DOWN: (503, _SLOW_DOWN),
}


@dataclass(slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, so many times."""

    kind: FaultKind
    # Regular expression that the request's operation has to match; see ``Request``
    operation: str = ".*"
    key: str = ""  # regular expression that has to be found in the key
    times: int = 1  # how often it goes wrong before requests pass again
    skip: int = 0  # how many matching requests pass before
    hits: int = 0  # how often it has gone wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it arrived."""

    # GET, HEAD, PUT, DELETE, LIST, PUT_IF (under a condition), CREATE_UPLOAD, PART, PART_COPY,
    # COMPLETE, ABORT, DELETE_MANY, or the method and the sub-resource
    operation: str
    key: str  # path below the bucket, or the prefix of a listing

    @property
    def kind(self) -> str:
        """What kind of object it is about; see ``kind_of_key``."""
        return kind_of_key(self.key)


@dataclass(slots=True)
class FaultProxy:
    """The proxy's knobs and counters; ``run_proxy`` starts one."""

    upstream: str
    endpoint: str = ""  # where it listens
    requests: list[Request] = field(default_factory=list)  # all that arrived, in order
    # Called with every request before it is passed on
    on_request: Callable[[Request], None] | None = None
    faults: list[Fault] = field(default_factory=list)  # what goes wrong from now on
    # Bytes of answers' bodies, by operation
    body_bytes: Counter[str] = field(default_factory=Counter)
    # Bytes of requests' bodies, by operation
    sent_bytes: Counter[str] = field(default_factory=Counter)
    slow_seconds: float = 0.3
    policy: Policy | None = None  # what the senders may do; None: all
    # Whether conditional PUTs are passed on one after the other: moto looks first and writes then,
    # so on a busy machine two writers of one version win
    is_serial: bool = False
    _first_answers: dict[str, tuple[int, list[tuple[str, str]], bytes]] = field(
        default_factory=dict
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def counts(self) -> Counter[tuple[str, str]]:
        """Return how often each operation was asked for, by kind of object."""
        with self._lock:
            return Counter((request.operation, request.kind) for request in self.requests)

    def reset(self) -> None:
        """Forget what was counted and what should go wrong."""
        with self._lock:
            self.on_request = self.policy = None
            self.requests.clear()
            self.faults.clear()
            self.body_bytes.clear()
            self.sent_bytes.clear()
            self._first_answers.clear()

    def _note(self, request: Request) -> Fault | None:
        """Count a request, and return what goes wrong with it."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                matches = re.fullmatch(fault.operation, request.operation) and re.search(
                    fault.key, request.key
                )
                if matches and fault.hits < fault.times:
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    fault.hits += 1
                    return fault
        return None


def describe_request(method: str, target: str, headers: "http.client.HTTPMessage") -> Request:
    """Return what a request asks for."""
    parts = urlsplit(target)
    key = unquote(parts.path.lstrip("/").partition("/")[2])
    query = parse_qs(parts.query, keep_blank_values=True)
    if "list-type" in query or "list-type=2" in parts.query:
        return Request(operation="LIST", key=query.get("prefix", [""])[0])
    if method == "POST":
        found = [name for sub, name in _POSTS.items() if sub in query]
        return Request(operation=found[0] if found else "POST", key=key)
    operation = method
    if method == "PUT" and "partNumber" in query:
        operation = "PART_COPY" if "x-amz-copy-source" in headers else "PART"
    elif method == "PUT" and ("If-Match" in headers or "If-None-Match" in headers):
        operation = "PUT_IF"
    elif method == "DELETE" and "uploadId" in query:
        operation = "ABORT"
    elif not key and query:
        operation = f"{method} {min(query)}"
    return Request(operation=operation, key=key)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = describe_request(self.command, self.path, self.headers)
        fault = self.proxy._note(request)
        self.proxy.sent_bytes[request.operation] += len(body)
        if self.proxy.on_request is not None:
            self.proxy.on_request(request)
        needs = needs_of(self.command, self.path, self.headers, body)
        if self.proxy.policy and not all(map(self.proxy.policy.allows, needs)):
            self._answer(403, [], _DENIED)
            return
        kind = fault.kind if fault else None
        if kind in _ANSWERS:
            status, content = _ANSWERS[kind]
            self._answer(status, [], content)
            return
        if kind is FaultKind.DROP_REQUEST:
            self.close_connection = True
            self.connection.close()
            return
        if kind is FaultKind.SLOW:
            time.sleep(self.proxy.slow_seconds)
        waits = self.proxy.is_serial and request.operation == "PUT_IF"
        with self.proxy._turn if waits else nullcontext():
            status, headers, content = self._ask(body)
        is_absent = status == _NOT_FOUND and request.key
        if is_absent and self.proxy.policy and not self.proxy.policy.allows(absence_of(self.path)):
            status, headers, content = 403, [], _DENIED
        first = self.proxy._first_answers.setdefault(
            f"{self.command} {self.path}", (status, headers, content)
        )
        if kind is FaultKind.STALE:
            status, headers, content = first
        if kind is FaultKind.LOSE_ANSWER:
            self.close_connection = True
            self.connection.close()
            return
        if kind is FaultKind.FAIL_AFTER:
            status, headers, content = 500, [], _INTERNAL
        self.proxy.body_bytes[request.operation] += len(content)
        self._answer(status, headers, content, torn=kind is FaultKind.DROP_BODY)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815  # the names it calls

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(urlsplit(self.proxy.upstream).netloc, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, torn: bool = False
    ) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # of a HEAD: that of the object
            elif name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if torn:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
        elif self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its signature
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: connections that end are what this is for."""


@contextmanager
def run_proxy(upstream: str, *, is_serial: bool = False) -> Iterator[FaultProxy]:
    """Run a proxy in front of a server."""
    proxy = FaultProxy(upstream, is_serial=is_serial)
    handler: type[_Handler] = type("Handler", (_Handler,), {"proxy": proxy})
    server = _Server(("127.0.0.1", 0), handler)
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
