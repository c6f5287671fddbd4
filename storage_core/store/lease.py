"""The lease of a managed root: only its holder commits. Fencing tokens tell runs apart.

``lease.json`` names the holder, when the lease ends, and the fencing token, which rises by one with
every acquisition and is never reset. All changes are conditional PUTs. A thread renews the lease
while its run works; a run that dies lets it end. Whoever holds the lease asks the store again right
before a commit, and stops some time before the end by its own clock, since clocks differ; and a
manifest that was committed under a higher token refuses every lower one.
"""

import secrets
import threading
from dataclasses import dataclass, replace
from typing import Annotated, Final, Self

from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    ConditionFailedError,
    LeaseHeldError,
    LeaseLostError,
    ObjectNotFoundError,
    StorageError,
)
from storage_core.filenames import LEASE_FILE
from storage_core.json_values import INLINE, Count, JsonFile, Word, whole, word
from storage_core.store.object_store import ObjectStore

MAX_LEASE_BYTES: Final = 64 << 10
DEFAULT_TTL_MS: Final = 120_000
_RENEWALS_A_LEASE: Final = 4
# The holder stops this part of the duration before the end, to allow for different clocks.
_MARGIN_PARTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseProof:
    """Identifies the lease of a run, for its tasks."""

    holder: Word
    token: Annotated[int, whole(1)]  # the fencing token, at least 1
    # 32 hexadecimal digits; tells two acquisitions apart whatever the token says.
    nonce: Annotated[str, word(r"[0-9a-f]{32}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFacts:
    """The fields of ``lease.json``; times are epoch milliseconds."""

    proof: Annotated[LeaseProof, INLINE]
    acquired_ms: Count
    ttl_ms: Annotated[int, whole(1)]
    expires_ms: Count
    is_released: bool

    def is_free(self, now_ms: int) -> bool:
        """Tell whether somebody else may take it."""
        return self.is_released or now_ms >= self.expires_ms

    def is_safe(self, now_ms: int) -> bool:
        """Tell whether its holder may still commit."""
        margin = self.ttl_ms // _MARGIN_PARTS
        return not self.is_released and now_ms < self.expires_ms - margin


_LEASE: Final = JsonFile(LeaseFacts, "pylog-lease")


def read_lease(objects: ObjectStore) -> tuple[LeaseFacts, str] | None:
    """Return the lease and its object's tag; None without a lease."""
    try:
        content, etag = objects.get_with_etag(LEASE_FILE, limit_bytes=MAX_LEASE_BYTES)
    except ObjectNotFoundError:
        return None
    return _LEASE.parse(content, f"{objects.url}/{LEASE_FILE}"), etag


def require_lease(objects: ObjectStore, proof: LeaseProof, *, now_ms: int) -> None:
    """Check by one GET, before commits, that a run holds its lease."""
    lease = read_lease(objects)
    if lease is None:
        raise LeaseLostError(objects.url, proof.holder, "is gone")
    facts, _ = lease
    if facts.proof != proof:
        raise LeaseLostError(
            objects.url,
            proof.holder,
            f"with token {proof.token} went to {facts.proof.holder} with token {facts.proof.token}",
        )
    if not facts.is_safe(now_ms):
        raise LeaseLostError(objects.url, proof.holder, f"ended at {facts.expires_ms} ms")


class Lease:
    """The lease of a managed root, held and renewed by a thread. Made by ``acquire_lease``; a
    context manager releases it at the end."""

    def __init__(self, objects: ObjectStore, facts: LeaseFacts, etag: str, clock: Clock) -> None:
        self._objects = objects
        self._facts = facts
        self._etag = etag
        self._clock = clock
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._is_lost = False
        self._thread: threading.Thread | None = None

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._facts.proof.token

    @property
    def proof(self) -> LeaseProof:
        """Identifies this lease, for tasks."""
        return self._facts.proof

    @property
    def expires_ms(self) -> int:
        """When it ends unless it is renewed, epoch milliseconds."""
        return self._facts.expires_ms

    def is_current(self) -> bool:
        """Tell, without asking the store, whether this process may still commit."""
        return not self._is_lost and self._facts.is_safe(self._clock.now_ms())

    def require_current(self) -> None:
        """Ask the store; raises as require_lease does."""
        if not self.is_current():
            raise LeaseLostError(
                self._objects.url, self.proof.holder, f"ended at {self.expires_ms} ms"
            )
        require_lease(self._objects, self.proof, now_ms=self._clock.now_ms())

    def renew(self) -> None:
        """Make it last for its whole duration from now on."""
        with self._changing:
            now_ms = self._clock.now_ms()
            # An ended lease may be another run's: taking it back would be an acquisition.
            if self._is_lost or self._facts.is_free(now_ms):
                self._is_lost = True
                raise LeaseLostError(
                    self._objects.url, self.proof.holder, f"ended at {self.expires_ms} ms"
                )
            self._replace(replace(self._facts, expires_ms=now_ms + self._facts.ttl_ms))

    def keep_renewing(self) -> None:
        """Start the thread that renews it until it is released or lost."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._renew_until_ended, name="pylog-lease", daemon=True
            )
            self._thread.start()

    def release(self) -> None:
        """End the lease at once, so that the next run can start. The token stays. A lost lease
        is left alone."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._changing:
            if self._is_lost or self._facts.is_released:
                return
            try:
                self._replace(replace(self._facts, is_released=True))
            except LeaseLostError:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _replace(self, facts: LeaseFacts) -> None:
        try:
            self._etag = self._objects.put_if_match(LEASE_FILE, _LEASE.encode(facts), self._etag)
        except ConditionFailedError as error:
            self._is_lost = True
            raise LeaseLostError(
                self._objects.url, self.proof.holder, "was taken by somebody else"
            ) from error
        self._facts = facts

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._facts.ttl_ms / _RENEWALS_A_LEASE / 1000):
            try:
                self.renew()
            except LeaseLostError:
                return
            except StorageError:
                continue  # the store may come back before the lease ends


def acquire_lease(
    objects: ObjectStore, *, holder: str, ttl_ms: int = DEFAULT_TTL_MS, clock: Clock | None = None
) -> Lease:
    """Take the lease of a managed root.

    Args:
        holder: Name of the new holder, for people: at most 1,024 printable ASCII characters.
        ttl_ms: How long it lasts unless it is renewed, milliseconds.
        clock: The clock, by default this machine's.
    """
    clock = clock or SystemClock()
    now_ms = clock.now_ms()
    former = read_lease(objects)
    if former is not None and not former[0].is_free(now_ms):
        raise _held(objects, former[0], now_ms)
    token = former[0].proof.token + 1 if former else 1
    facts = LeaseFacts(
        proof=LeaseProof(holder=holder, token=token, nonce=secrets.token_hex(16)),
        acquired_ms=now_ms,
        ttl_ms=ttl_ms,
        expires_ms=now_ms + ttl_ms,
        is_released=False,
    )
    content = _LEASE.encode(facts)
    _LEASE.parse(
        content, f"{objects.url}/{LEASE_FILE}"
    )  # refuses a holder that nobody could read back
    try:
        if former is None:
            etag = objects.put_if_absent(LEASE_FILE, content)
        else:
            etag = objects.put_if_match(LEASE_FILE, content, former[1])
    except ConditionFailedError:
        winner = read_lease(objects)
        if winner is None:
            raise
        raise _held(objects, winner[0], now_ms) from None
    return Lease(objects, facts, etag, clock)


def _held(objects: ObjectStore, lease: LeaseFacts, now_ms: int) -> LeaseHeldError:
    ends_ms = lease.expires_ms
    return LeaseHeldError(objects.url, lease.proof.holder, ends_ms, ends_ms - now_ms)
