"""Producers that write until they are stopped, or until their broker is gone, and remember it.

Each record's value is its own, so that what a consumer gets can be held against what was sent.
"""

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jpype

from tests.oracle.broker_clients import Delivery, Partition
from tests.oracle.jvm import java, java_bytes, java_map, kafka_failures
from tests.oracle.records import ReadRecord

# Small batches, many of them on their way at any time.
_CONFIG: Final = {
    "acks": "all",
    "linger.ms": "5",
    "batch.size": "4000",
    "request.timeout.ms": "10000",
    "delivery.timeout.ms": "120000",
    "max.block.ms": "30000",
}
_MOST_ON_THEIR_WAY: Final = 400
_PER_TRANSACTION: Final = 15
_ABORTED_OF: Final = 4
_VALUE_BYTES: Final = 200
_JOIN_SECONDS: Final = 90
_SERIALIZER: Final = "org.apache.kafka.common.serialization.ByteArraySerializer"


@dataclass(slots=True)
class Sent:
    """What producers sent, by what became of it."""

    # Values by offset, by partition; a transaction's once its commit was
    acknowledged: dict[Partition, dict[int, bytes]] = field(default_factory=dict)
    # Groups of values of which all or none may be there: one record, or the records of a
    # transaction whose commit was asked for and not answered
    undecided: list[frozenset[bytes]] = field(default_factory=list)
    never: set[bytes] = field(default_factory=set)  # values that no committed reader may get

    @property
    def count(self) -> int:
        """How many records were acknowledged."""
        return sum(map(len, list(self.acknowledged.values())))

    def problems(
        self, got: Mapping[Partition, Sequence[ReadRecord]], *, is_committed: bool = True
    ) -> list[str]:
        """Return what is wrong with what consumers got; nothing is best.

        Args:
            is_committed: Whether they read committed records only; others get everything.
        """
        found = []
        values: set[bytes] = set()
        for partition, records in got.items():
            by_offset = {record.offset: record.value for record in records}
            wanted = self.acknowledged.get(partition, {})
            lost = {offset for offset, value in wanted.items() if by_offset.get(offset) != value}
            if lost:
                found.append(f"{partition}: lost or changed at {sorted(lost)[:5]} ({len(lost)})")
            for value in by_offset.values():
                if value in values:
                    found.append(f"{partition}: {value!r} is there twice")
                values.add(value or b"")
        known = {v for each in self.acknowledged.values() for v in each.values()}
        for group in self.undecided:
            if is_committed and group & values and not group <= values:
                found.append(f"half of a transaction: {sorted(group & values)[:2]}")
            known |= group
        known |= self.never
        found += [f"nobody wrote {value!r}" for value in sorted(values - known)[:5]]
        if is_committed:
            found += [f"was aborted: {value!r}" for value in sorted(values & self.never)[:5]]
        return found


class Load:
    """Producers in threads of their own; a context manager that stops them."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        idempotent: str,
        transactional: str,
        partitions: int,
        transactional_ids: Sequence[str],
    ) -> None:
        self._servers = bootstrap_servers
        self._partitions = partitions
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sent = Sent()
        self._threads = [threading.Thread(target=self._write, args=(idempotent,), daemon=True)]
        self._threads += [
            threading.Thread(target=self._write_transactions, args=(transactional, name))
            for name in transactional_ids
        ]
        self._producers: list[Any] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(at_once=True)

    def stop(self, *, at_once: bool = False) -> Sent:
        """End the producers and return what they sent.

        Args:
            at_once: Their broker is gone: what is on its way is given up. Else it is waited for.
        """
        self._stop.set()
        if at_once:
            for producer in list(self._producers):
                producer.close(java("java.time.Duration").ofMillis(0))
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_JOIN_SECONDS)
        return self.sent

    def _write(self, topic: str) -> None:
        producer = self._producer({})
        on_their_way: list[tuple[bytes, Any]] = []
        try:
            for number in itertools.count():
                if self._stop.is_set():
                    break
                value = b"i%08d".ljust(_VALUE_BYTES, b".") % number
                on_their_way.append((value, producer.send(self._record(topic, number, value))))
                if len(on_their_way) >= _MOST_ON_THEIR_WAY:
                    on_their_way[0][1].get()
                    on_their_way = self._keep(on_their_way)
            producer.flush()
        except jpype.JException:
            # The broker is gone, or the producer was closed.
            pass
        finally:
            producer.close(java("java.time.Duration").ofMillis(0))
            for value, _ in self._keep(on_their_way):
                self.sent.undecided.append(frozenset([value]))

    def _keep(self, sent: Sequence[tuple[bytes, Any]]) -> list[tuple[bytes, Any]]:
        """Take note of what was acknowledged, and return the rest."""
        rest = []
        for value, future in sent:
            promised = Delivery(future).acknowledged()
            if promised is None:
                rest.append((value, future))
            else:
                partition, offset = promised
                self.sent.acknowledged.setdefault(partition, {})[offset] = value
        return rest

    def _write_transactions(self, topic: str, name: str) -> None:
        producer = self._producer({"transactional.id": name})
        values: list[bytes] = []
        futures: list[Any] = []
        is_asked = False
        try:
            producer.initTransactions()
            for number in itertools.count():
                if self._stop.is_set():
                    break
                values, futures, is_asked = [], [], False
                producer.beginTransaction()
                for each in range(_PER_TRANSACTION):
                    value = f"{name}-{number:06d}-{each:02d}".encode().ljust(_VALUE_BYTES, b".")
                    values.append(value)
                    futures.append(producer.send(self._record(topic, number + each, value)))
                if number % _ABORTED_OF == _ABORTED_OF - 1:
                    producer.flush()
                    producer.abortTransaction()
                    with self._lock:
                        self.sent.never |= set(values)
                else:
                    is_asked = True
                    producer.commitTransaction()
                    with self._lock:
                        self._keep(list(zip(values, futures, strict=True)))
                values = []
        except jpype.JException:
            with self._lock:
                if is_asked:
                    self.sent.undecided.append(frozenset(values))
                else:
                    self.sent.never |= set(values)
        finally:
            producer.close(java("java.time.Duration").ofMillis(0))

    def _producer(self, config: Mapping[str, str]) -> Any:
        producer = _new_producer(self._servers, config)
        self._producers.append(producer)
        return producer

    def _record(self, topic: str, number: int, value: bytes) -> Any:
        return java("org.apache.kafka.clients.producer.ProducerRecord")(
            topic,
            java("java.lang.Integer").valueOf(number % self._partitions),
            java_bytes(b"k%d" % (number % 1000)),
            java_bytes(value),
        )


def end_open_transactions(bootstrap_servers: str, names: Sequence[str]) -> None:
    """Do as producers do that start anew: what those of before left open is ended."""
    for name in names:
        producer = _new_producer(bootstrap_servers, {"transactional.id": name})
        try:
            with kafka_failures():
                producer.initTransactions()
        finally:
            producer.close()


def _new_producer(bootstrap_servers: str, config: Mapping[str, str]) -> Any:
    serializer = java(_SERIALIZER)
    settings = {"bootstrap.servers": bootstrap_servers, **_CONFIG, **config}
    with kafka_failures():
        return java("org.apache.kafka.clients.producer.KafkaProducer")(
            java_map(settings.items()), serializer(), serializer()
        )
