"""The lease of a managed root: one holder, an end, a token that rises, a fence."""

import re
import threading

import pytest

from storage_core.clock import ManualClock
from storage_core.errors import LeaseHeldError, LeaseLostError, ManifestError, StorageError
from storage_core.filenames import LEASE_FILE
from storage_core.store.lease import acquire_lease, read_lease, require_lease
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.storage_core.store import managed_homes

TTL_MS = 10_000


@pytest.fixture
def objects():
    yield MemoryObjectStore("memory://lease/root")
    forget_memory("memory://lease")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(managed_homes.NOW_MS)


def acquire(objects, clock, holder="run one on host a"):
    return acquire_lease(objects, holder=holder, ttl_ms=TTL_MS, clock=clock)


@pytest.mark.item("DIR-02")
def test_a_second_run_is_refused_with_the_holders_name(objects, clock):
    lease = acquire(objects, clock)
    with pytest.raises(LeaseHeldError, match="run one on host a") as caught:
        acquire(objects, clock, "run two")
    assert caught.value.code == "LEASE_HELD"
    assert caught.value.expires_ms == managed_homes.NOW_MS + TTL_MS
    assert re.search(r"ends at \d{4}-\d\d-\d\dT[\d:.]+Z, in 10 seconds", str(caught.value))
    assert lease.is_current()
    lease.require_current()


@pytest.mark.parametrize("former", [0, 1], ids=["never held", "released"])
def test_of_two_that_see_a_free_lease_one_takes_it(objects, clock, former: int):
    for _ in range(former):
        acquire(objects, clock).release()

    class Late(MemoryObjectStore):
        is_late = True

        def get_with_etag(self, key: str, *, limit_bytes: int = 1 << 16) -> tuple[bytes, str]:
            try:
                return super().get_with_etag(key, limit_bytes=limit_bytes)
            finally:
                if self.is_late:
                    self.is_late = False
                    acquire(objects, clock, "the quicker run")

    with pytest.raises(LeaseHeldError, match="the quicker run"):
        acquire(Late(objects.url), clock, "the later run")
    facts, _ = read_lease(objects)
    assert facts.proof.holder == "the quicker run"
    assert facts.proof.token == former + 1


def test_the_token_rises_with_every_holder_and_is_never_reset(objects, clock):
    tokens = []
    for _ in range(3):
        with acquire(objects, clock) as lease:
            tokens.append(lease.token)
    assert tokens == [1, 2, 3]
    acquire(objects, clock)
    clock.advance(TTL_MS)
    assert acquire(objects, clock, "run two").token == 5


def test_a_lease_ends_unless_it_is_renewed(objects, clock):
    lease = acquire(objects, clock)
    clock.advance(TTL_MS - 1)
    with pytest.raises(LeaseHeldError):
        acquire(objects, clock, "run two")
    lease.renew()
    clock.advance(TTL_MS - 1)
    with pytest.raises(LeaseHeldError):
        acquire(objects, clock, "run two")
    clock.advance(1)
    with pytest.raises(LeaseLostError):
        lease.renew()
    other = acquire(objects, clock, "run two")
    assert other.token == 2
    assert not lease.is_current()
    with pytest.raises(LeaseLostError):
        require_lease(objects, lease.proof, now_ms=clock.now_ms())


def test_the_holder_stops_some_time_before_the_end(objects, clock):
    lease = acquire(objects, clock)
    clock.advance(TTL_MS * 9 // 10 - 1)
    assert lease.is_current()
    require_lease(objects, lease.proof, now_ms=clock.now_ms())
    clock.advance(1)
    assert not lease.is_current()
    with pytest.raises(LeaseLostError, match="ended"):
        require_lease(objects, lease.proof, now_ms=clock.now_ms())
    with pytest.raises(LeaseHeldError):
        acquire(objects, clock, "run two")


def test_of_many_that_want_it_one_has_it(objects, clock):
    acquire(objects, clock).release()
    winners = []

    def take(number: int) -> None:
        try:
            winners.append(acquire(objects, clock, f"run {number}").proof.holder)
        except LeaseHeldError:
            return

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert read_lease(objects)[0].proof.holder == winners[0]


def test_a_lease_that_was_taken_is_neither_renewed_nor_released(objects, clock):
    lease = acquire(objects, clock)
    clock.advance(TTL_MS)
    other = acquire(objects, clock, "run two")
    clock.advance(-1)
    with pytest.raises(LeaseLostError, match="taken by somebody else"):
        lease.renew()
    lease.release()
    assert other.is_current()
    other.require_current()


def test_a_thread_renews_it_until_the_end(objects, clock):
    renewed = threading.Event()

    class Noticing(MemoryObjectStore):
        def put_if_match(self, key: str, content: bytes, etag: str) -> str:
            renewed.set()
            return super().put_if_match(key, content, etag)

    others = renewing_threads()
    # The clock stands still: on a busy machine the thread may come late, never too late.
    lease = acquire_lease(Noticing(objects.url), holder="run one", ttl_ms=40, clock=clock)
    before = lease.expires_ms
    lease.keep_renewing()
    lease.keep_renewing()
    assert len(renewing_threads() - others) == 1
    assert renewed.wait(10)
    lease.release()
    facts, _ = read_lease(objects)
    assert facts.is_released
    assert facts.expires_ms >= before
    assert renewing_threads() <= others


def renewing_threads() -> set[threading.Thread]:
    """Return the threads that renew a lease, those that other tests left behind among them."""
    return {thread for thread in threading.enumerate() if thread.name == "pylog-lease"}


def test_a_store_that_fails_for_a_while_does_not_end_the_renewing(objects, clock):
    tries = []
    enough = threading.Event()

    class Failing(MemoryObjectStore):
        def put_if_match(self, key: str, content: bytes, etag: str) -> str:
            tries.append(key)
            if len(tries) == 3:
                enough.set()
            raise StorageError(key, "503")

    lease = acquire_lease(Failing(objects.url), holder="run one", ttl_ms=60, clock=clock)
    lease.keep_renewing()
    assert enough.wait(10)
    with pytest.raises(StorageError):
        lease.release()


@pytest.mark.item("FLT-10")
def test_a_zombie_whose_lease_ended_cannot_commit(objects, clock):
    managed_homes.create_partition(objects)
    acquire(objects, clock).release()
    zombie_lease = acquire(objects, clock)
    zombie = managed_homes.open_partition(objects)
    zombie.write_file("00000000000000000000.log", b"by the zombie")

    def publish(proof) -> None:
        zombie.publish(
            run_id="zombie",
            fencing_token=proof.token,
            fence=lambda: require_lease(objects, proof, now_ms=clock.now_ms()),
        )

    clock.advance(TTL_MS)
    acquire(objects, clock, "run two")
    with pytest.raises(LeaseLostError, match="run two"):
        publish(zombie_lease.proof)
    assert managed_homes.contents(managed_homes.open_partition(objects)) == managed_homes.FILES


@pytest.mark.parametrize("content", [b"{}", b"", b'{"format": "pylog-lease", "version": 1}'])
def test_what_is_no_lease_is_not_overwritten(objects, clock, content):
    objects.put(LEASE_FILE, content)
    with pytest.raises(ManifestError, match=r"lease\.json"):
        acquire(objects, clock)
    assert objects.get(LEASE_FILE) == content


def test_a_holder_is_a_line_of_text(objects, clock):
    with pytest.raises(ManifestError, match="holder"):
        acquire(objects, clock, "two\nlines")
    assert read_lease(objects) is None
