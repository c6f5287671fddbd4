"""Diagnose several brokers, then foretell their losses at a start."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any, Final

from pylog_spark.cluster.audit.driver import Audit, audit
from pylog_spark.cluster.audit.elections import Starts, describe_start
from pylog_spark.cluster.cli.audit import details_of, loss_blocks
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.doctor.driver import Diagnosis, SeveralDiagnoses
from pylog_spark.options import JobOptions
from pylog_spark.run.guards import UnreadBroker
from pylog_spark.view import Block
from storage_core.errors import ConfigError, PylogError
from storage_core.maintenance.verification.findings import Code
from storage_core.maintenance.verification.prescription import heal_commands
from storage_core.maintenance.verification.verdict import Advice, Verdict
from storage_core.roots.open_root import LogRoot

# Of a broker's own verdict: what keeps all from starting, the worst first.
_WORST_FIRST: Final = (
    Advice.IN_USE,
    Advice.DO_NOT_START,
    Advice.COPY_DAMAGED,
    Advice.NO_PARTITION,
    Advice.LOOK_BEFORE_START,
    Advice.RECOVER,
    Advice.START_BROKER,
    Advice.COPY_WHOLE,
)
_ELECTION_FOLDER: Final = "elections"
# Damage of which another replica may have the bytes.
_HEALABLE: Final = frozenset(
    {
        Code.BATCH_CRC_WRONG,
        Code.BATCH_LENGTH_IMPOSSIBLE,
        Code.MAGIC_UNKNOWN,
        Code.OFFSETS_MISSING,
        Code.OFFSETS_NOT_RISING,
        Code.OFFSET_BELOW_BASE,
        Code.SEGMENTS_OVERLAP,
        Code.TORN_SEGMENT,
    }
)
_STARTS: Final = frozenset({Advice.START_BROKER, Advice.COPY_WHOLE})
_BLOCKS: Final = frozenset(
    {Advice.IN_USE, Advice.DO_NOT_START, Advice.COPY_DAMAGED, Advice.NO_PARTITION}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDiagnosis(SeveralDiagnoses):
    """The doctor's verdict on several brokers."""

    audit: Audit  # their replicas compared, and what is lost if all of them start

    @property
    def is_part(self) -> bool:
        return bool(self.unread) or any(self.audit.rows["error"].to_pylist())

    def facts(self) -> dict[str, Any]:
        starts = self.audit.starts
        return {
            "starts": None if starts is None else asdict(starts),
            "partitions": [],
            "engine": self.audit.engine,
        }

    def partitions(self) -> Iterator[Mapping[str, Any]]:
        return self.audit.answers()

    def blocks(self) -> Iterator[Block]:
        return loss_blocks(details_of(self.audit))


def diagnose_brokers(
    place: Place,
    brokers: Mapping[int, Sequence[LogRoot]],
    unread: Sequence[UnreadBroker],
    options: JobOptions,
    diagnose_one: Callable[[int, Sequence[str]], Diagnosis],
    needs: Sequence[str],
) -> ClusterDiagnosis:
    """Diagnose brokers one after another and compare their replicas; write nothing.

    A broker with something unreadable gets no diagnosis and does not start in the comparison; its
    readable replicas are compared with the others.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        brokers: Their log directories, by node id.
        diagnose_one: Diagnoses the log directories of one broker, by its node id.
        needs: What a start needs besides them, a sentence each.
    """
    diagnoses: dict[int, Diagnosis] = {}
    failures: dict[int, Exception] = {}
    for broker, roots in brokers.items():
        try:
            diagnoses[broker] = diagnose_one(broker, [root.location for root in roots])
        except (PylogError, OSError) as failure:
            failures[broker] = failure
    owners: dict[str, int | None] = {
        root.location: broker for broker, roots in brokers.items() for root in roots
    }
    owners |= {location: None for each in unread for location in each.roots}
    places = []
    for location, owner in owners.items():
        try:
            # A disk may have gone away since.
            resolve_roots([location], role=options.role, must_open=False)
            places.append(location)
        except ConfigError as failure:
            if owner is not None:
                failures[owner] = failure
    diagnoses = {broker: each for broker, each in diagnoses.items() if broker not in failures}
    if not diagnoses:
        raise next(iter(failures.values()))
    all_unread = (
        *unread,
        *(
            UnreadBroker(
                broker=broker,
                roots=tuple(root.location for root in brokers[broker]),
                error=str(failure),
            )
            for broker, failure in failures.items()
        ),
    )
    compared = audit(place, places, options, up=list(diagnoses))
    assert compared.starts is not None  # noqa: S101  # brokers start
    notes = [*compared.notes, compared.belief, *needs]
    verdict = decide_for_all(list(owners), diagnoses, compared.starts, notes, all_unread)
    return ClusterDiagnosis(verdict=verdict, brokers=diagnoses, audit=compared, unread=all_unread)


def decide_for_all(
    places: Sequence[str],
    diagnoses: Mapping[int, Diagnosis],
    starts: Starts,
    notes: Sequence[str],
    unread: Sequence[UnreadBroker] = (),
) -> Verdict:
    """Return the verdict on several brokers.

    Args:
        diagnoses: The diagnosis of each broker, by node id.
        starts: The losses if they start, and the best order.
        notes: Remarks: the source of ISR and epochs, and others.
        unread: Log directories without a diagnosis.
    """
    # No election by hand while a replica is unread.
    least, manual = starts.least, None if unread else starts.manual
    best, others = describe_start(least), []
    if manual is not None:
        by_hand = describe_start(manual.start, manual)
        if manual.loses_less_than(least):
            best, others = by_hand, [f"without elections by hand: {best}"]
        else:
            others = [f"if no other broker can come back: {by_hand}"]
    order = [*least.brokers, *(broker for broker in diagnoses if broker not in least.brokers)]
    advice = min((each.verdict.advice for each in diagnoses.values()), key=_WORST_FIRST.index)
    if (unread or any(least.loss)) and advice not in _BLOCKS:
        advice = Advice.LOOK_BEFORE_START
    blocked = [broker for broker in order if diagnoses[broker].verdict.advice in _BLOCKS]
    if unread:
        best = f"with the readable directories alone, {best}"
    if blocked:
        names = " or ".join(map(str, blocked))
        headline = f"Do not start broker {names} before its repair. After that, {best}."
    elif unread:
        names = " and ".join(
            each.roots[0] if each.broker is None else f"broker {each.broker}" for each in unread
        )
        headline = f"Do not start yet: {names} cannot be read. {best[0].upper()}{best[1:]}."
    elif least.lost_committed:
        headline = f"Do not start yet. The best order: {best}."
    else:
        headline = f"{best[0].upper()}{best[1:]}."
    # A log that others can heal need not be cut.
    commands = [
        *_healings(order, diagnoses),
        *(command for broker in order for command in diagnoses[broker].verdict.commands),
    ]
    if unread:
        commands.append(f"pylog doctor {' '.join(map(quote, places))}")
    elif any(least.loss):
        brokers = least.brokers if manual is None else (*manual.start.brokers, *manual.later)
        command = f"pylog audit {' '.join(map(quote, places))} --up {','.join(map(str, brokers))}"
        commands.append(
            command if manual is None else f"{command} --election-out {_ELECTION_FOLDER}"
        )
    return Verdict(
        advice=advice,
        headline=headline,
        reasons=(
            *(each.error for each in unread),
            *others,
            # Leave out the brokers that would just start.
            *(
                f"broker {broker}: {diagnoses[broker].verdict.headline}"
                for broker in order
                if diagnoses[broker].verdict.advice not in _STARTS
            ),
            *starts.notes,
            *notes,
        ),
        commands=tuple(commands),
        cut_records=sum(each.verdict.cut_records for each in diagnoses.values()),
    )


def _healings(order: Sequence[int], diagnoses: Mapping[int, Diagnosis]) -> Iterator[str]:
    """Yield the commands to heal damaged brokers from the others."""
    roots = {broker: [root.location for root in diagnoses[broker].roots] for broker in order}
    for broker in order:
        if _HEALABLE & {code for _, code, _ in diagnoses[broker].counts}:
            yield from heal_commands(broker, roots)
