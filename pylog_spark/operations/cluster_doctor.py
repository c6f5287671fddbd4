"""The doctor of several brokers: a diagnosis of each, then what they lose if they start."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from pylog_spark.engines.choice import Place
from pylog_spark.operations.audit import Audit, audit
from pylog_spark.operations.elections import Starts, describe_start
from pylog_spark.options import JobOptions
from pylog_spark.tasks.diagnosis import Diagnosis
from storage_core.maintenance.verification.verdict import Advice, Verdict
from storage_core.roots.open_root import LogRoot

# Of a broker's own verdict: what keeps all from starting, the worst first.
_WORST_FIRST: Final = (
    Advice.IN_USE,
    Advice.DO_NOT_START,
    Advice.COPY_DAMAGED,
    Advice.LOOK_BEFORE_START,
    Advice.RECOVER,
    Advice.START_BROKER,
    Advice.COPY_WHOLE,
)
_ELECTION_FOLDER: Final = "elections"
_STARTS: Final = frozenset({Advice.START_BROKER, Advice.COPY_WHOLE})
_BLOCKS: Final = frozenset({Advice.IN_USE, Advice.DO_NOT_START, Advice.COPY_DAMAGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDiagnosis:
    """What the doctor says of several brokers.

    Attributes:
        verdict: What to do with all of them.
        brokers: The diagnosis of each, by node id.
        audit: Their replicas compared, and what is lost if all of them start.
    """

    verdict: Verdict
    brokers: Mapping[int, Diagnosis]
    audit: Audit


def diagnose_cluster(
    place: Place,
    brokers: Mapping[int, Sequence[LogRoot]],
    options: JobOptions,
    diagnose_one: Callable[[int, Sequence[str]], Diagnosis],
) -> ClusterDiagnosis:
    """Diagnose brokers one after another, and compare their replicas; nothing is written.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        brokers: Their log directories, by node id.
        options: Which topics, which role.
        diagnose_one: Diagnoses the log directories of one broker, by its node id.

    Raises:
        PylogError: As ``diagnose`` and ``audit``.
        pyspark.errors.PySparkException: Spark failed.
    """
    diagnoses = {
        broker: diagnose_one(broker, [root.location for root in roots])
        for broker, roots in brokers.items()
    }
    places = [root.location for roots in brokers.values() for root in roots]
    compared = audit(place, places, options, up=list(brokers))
    assert compared.starts is not None  # noqa: S101  # brokers start
    notes = [*compared.notes, compared.belief]
    verdict = decide_for_all(places, diagnoses, compared.starts, notes)
    return ClusterDiagnosis(verdict=verdict, brokers=diagnoses, audit=compared)


def decide_for_all(
    places: Sequence[str], diagnoses: Mapping[int, Diagnosis], starts: Starts, notes: Sequence[str]
) -> Verdict:
    """Return the verdict on several brokers.

    Args:
        places: All their log directories.
        diagnoses: What is to be said of each, by node id.
        starts: What they lose if they start, and the best order.
        notes: Whose word on ISR and epochs was taken, and what else there is to know.
    """
    least, manual = starts.least, starts.manual
    best, others = describe_start(least), []
    if manual is not None:
        by_hand = describe_start(manual.start, manual)
        if manual.loses_less_than(least):
            best, others = by_hand, [f"without elections by hand: {best}"]
        else:
            others = [f"if nobody else can come: {by_hand}"]
    order = [*least.brokers, *(broker for broker in diagnoses if broker not in least.brokers)]
    advice = min((each.verdict.advice for each in diagnoses.values()), key=_WORST_FIRST.index)
    if any(least.loss) and advice not in _BLOCKS:
        advice = Advice.LOOK_BEFORE_START
    blocked = [broker for broker in order if diagnoses[broker].verdict.advice in _BLOCKS]
    if blocked:
        names = " or ".join(map(str, blocked))
        headline = f"Do not start broker {names} as it is. Afterwards {best}."
    elif least.lost_committed:
        headline = f"Do not start yet. What loses least: {best}."
    else:
        headline = f"{best[0].upper()}{best[1:]}."
    commands = [command for broker in order for command in diagnoses[broker].verdict.commands]
    if any(least.loss):
        brokers = least.brokers if manual is None else (*manual.start.brokers, *manual.later)
        command = f"pylog audit {' '.join(map(quote, places))} --up {','.join(map(str, brokers))}"
        commands.append(
            command if manual is None else f"{command} --election-out {_ELECTION_FOLDER}"
        )
    return Verdict(
        advice=advice,
        headline=headline,
        reasons=(
            *others,
            # That one alone would just start says nothing here.
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
