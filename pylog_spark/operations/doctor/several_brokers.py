"""What a house above says of more than one broker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pylog_spark.engines.choice import Place
from pylog_spark.operations.doctor.diagnosis import Diagnosis
from pylog_spark.options import JobOptions
from pylog_spark.run.several_brokers import UnreadBroker
from pylog_spark.view import Block
from storage_core.maintenance.verification.verdict import Verdict
from storage_core.roots.open_root import LogRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralDiagnoses(ABC):
    """What the doctor says of several brokers."""

    verdict: Verdict
    brokers: Mapping[int, Diagnosis]  # the diagnosis of each, by node id
    unread: Sequence[UnreadBroker]

    @property
    @abstractmethod
    def is_part(self) -> bool:
        """Whether something could not be read or compared."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what a program is told beside the verdict; its list ``partitions`` is empty."""

    @abstractmethod
    def partitions(self) -> Iterator[Mapping[str, Any]]:
        """Yield what a program is told of each partition."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield what a person is told of partitions."""


class SeveralBrokers(Protocol):
    """The doctor's word on more than one broker."""

    def find_absent_voters(self, roots: Sequence[str | Path], options: JobOptions) -> list[str]:
        """Return which controllers have to run beside those in log directories, a sentence for
        each cluster of which no majority of the voters is there."""

    def diagnose(
        self,
        place: Place,
        brokers: Mapping[int, Sequence[LogRoot]],
        unread: Sequence[UnreadBroker],
        options: JobOptions,
        diagnose_one: Callable[[int, Sequence[str]], Diagnosis],
        needs: Sequence[str],
    ) -> SeveralDiagnoses:
        """Diagnose brokers one after another, and compare their replicas; nothing is written.

        A broker of which something cannot be read gets no diagnosis and does not start in the
        comparison; what can be read of it is compared with the others.

        Args:
            place: Where it runs: a Spark session, or this machine (``Local``).
            brokers: Their log directories, by node id.
            diagnose_one: Diagnoses the log directories of one broker, by its node id.
            needs: What a start needs besides them, a sentence each.
        """
