"""Write a broker's last epoch into its clean-shutdown markers. With it the broker keeps its place
in ISR and ELR.

The controller takes a broker out of both when it registers without its last epoch, as after a kill.
A recovery leaves a marker without an epoch, since nobody knows what a log has lost. Where all
replicas are there and have the same, nothing is lost, and the epoch may be written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final

from pylog_spark.cluster.audit.driver import Audit, RootMarker, audit
from pylog_spark.cluster.audit.elections import Remark, own_replicas
from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import ATTEST
from pylog_spark.outcomes import Action
from pylog_spark.run.guards import check_of_brokers, check_roots
from pylog_spark.run.job import new_job
from storage_core.checkpoint.broker_files import UNKNOWN_BROKER_EPOCH
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.roots.broker import BrokerRoot, HeldBrokerRoot
from storage_core.wording import count_text

_Row = Mapping[str, Any]

# Of a row for programs.
ATTESTED_KEYS: Final = ("root", "broker", "old_broker_epoch", "broker_epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """The markers of brokers that keep their place."""

    attested: Sequence[RootMarker]  # those that were written; what they named before
    others: Sequence[RootMarker]
    belief: str  # whose word on epochs and assignment was taken, and how old it is

    def rows(self) -> Iterator[_Row]:
        """Yield each marker that was written, under ``ATTESTED_KEYS``."""
        for marker in self.attested:
            yield {
                "root": marker.root,
                "broker": marker.broker,
                "old_broker_epoch": marker.broker_epoch,
                "broker_epoch": marker.registered_epoch,
            }


def attest(place: Place, roots: Sequence[str | Path], options: JobOptions) -> Attestation:
    """Write the last broker epoch into markers left without one. It is a recovery that leaves them
    so. The locks of all roots are held from before the comparison until after the last marker.

    Args:
        place: Where the comparison runs: a Spark session, or this machine (``Local``).
    """
    if options.include or options.exclude:
        raise ConfigError(ATTEST.label, None, "--topics and --exclude would leave replicas out")
    log_roots = resolve_roots(roots, role=options.role)
    check_of_brokers(log_roots, "a marker is written only into a broker's directory")
    check_roots(log_roots, options, are_of_brokers=True)
    run_id = new_job(Action.VERIFY.value, log_roots, options).run_id
    with ExitStack() as stack:
        held: dict[str, HeldBrokerRoot] = {
            root.location: stack.enter_context(
                BrokerRoot(Path(root.location)).hold(run_id=run_id, mark_clean=True)
            )
            for root in log_roots
        }
        report = audit(place, [*held], options, holds_roots=True)
        markers = check_attestation(report)
        due = [each for each in markers if each.broker_epoch != each.registered_epoch]
        for marker in due:
            assert marker.registered_epoch is not None  # noqa: S101  # it was checked
            held[marker.root].attest_marker(marker.registered_epoch)
    others = [each for each in markers if each not in due]
    return Attestation(attested=due, others=others, belief=report.belief)


def check_attestation(report: Audit) -> list[RootMarker]:
    """Check an audit and return the markers to write. They are the markers of brokers that have
    replicas, and each may name its last epoch."""
    # Copies that moves and deletions left are nobody's replicas: what they have does not count.
    answers = [{**answer, "replicas": own_replicas(answer)} for answer in report.answers()]
    answers = [answer for answer in answers if answer["replicas"] or answer["error"]]
    owners = {each["root"] for answer in answers for each in answer["replicas"]}
    markers = [
        marker
        for marker in report.markers
        if marker.root in owners or marker.registered_epoch is not None
    ]
    _check_roots(markers, answers)
    for answer in answers:
        _check_metadata(answer)
        difference = _find_difference(answer)
        if difference:
            raise GuardRefusedError(
                "ATTEST_DIFFERENT",
                f"{_name(answer)}: {difference}: `pylog audit` shows it; without --attest the "
                "brokers start as after a kill",
            )
    for marker in markers:
        _check_epoch(marker)
    return markers


def _check_roots(markers: Sequence[RootMarker], answers: Sequence[_Row]) -> None:
    """Refuse where a directory, its marker or a replica is not there."""
    places = [marker.root for marker in markers]
    if all(marker.registered_epoch is None for marker in markers):
        raise GuardRefusedError(
            "ATTEST_EPOCH_UNKNOWN",
            "no metadata of the cluster lie in these directories: the last broker epochs are not "
            "known. Give the directory that has the newest __cluster_metadata-0, too",
        )
    brokers = list(dict.fromkeys(marker.broker for marker in markers))
    for broker in brokers:
        own = [marker for marker in markers if marker.broker == broker]
        if len(own) < own[0].registered_directories:
            raise GuardRefusedError(
                "ATTEST_INCOMPLETE",
                f"{len(own)} of the {own[0].registered_directories} log directories of broker "
                f"{broker} were given. Give all of them",
            )
    for answer in answers:
        missing = [each["broker"] for each in answer["replicas"] if each.get("missing")]
        if answer["unseen"]:
            raise GuardRefusedError(
                "ATTEST_INCOMPLETE",
                f"{_name(answer)} has a replica on broker {_list(answer['unseen'])}, of which no "
                "directory was given. Give the directories of all its brokers",
            )
        if missing:
            others = [each for each in brokers if each not in missing]
            raise GuardRefusedError(
                "ATTEST_INCOMPLETE",
                f"broker {_list(missing)} has nothing of {_name(answer)}: it would lead with an "
                f"empty log. Start the others first: `pylog audit {' '.join(map(quote, places))} "
                f"--up {_list(others)}`",
            )
    # Whoever lacks something needs no recovery first.
    for marker in markers:
        if not marker.is_there:
            raise GuardRefusedError(
                "ATTEST_UNRECOVERED",
                f"{marker.root} has no marker of a clean shutdown: recover it first: `pylog "
                f"recover {quote(marker.root)} --role broker`",
            )


def _check_metadata(answer: _Row) -> None:
    """Refuse if the cluster's metadata are older than a replica. Then other brokers may have
    replicas, too."""
    reasons = [
        each["message"]
        for each in answer["remarks"] or ()
        if each["code"] == Remark.LEADER_EPOCH_UNKNOWN
    ]
    if answer["assignment"] is None and not answer["error"]:
        reasons.append("the cluster's metadata lack this partition")
    if reasons:
        raise GuardRefusedError(
            "ATTEST_EPOCH_UNKNOWN",
            f"{_name(answer)}: {reasons[0]}. Give the directory that has newer metadata, too",
        )


def _find_difference(answer: _Row) -> str:
    """Return how a partition's replicas differ; empty for equal replicas."""
    if answer["candidates"] is None:
        return f"it could not be compared: {answer['error']}"
    for each in answer["replicas"]:
        if each.get("error"):
            return f"broker {each['broker']} cannot open its replica: {each['error']}"
    if answer["divergence"] is not None:
        return f"the replicas differ from offset {answer['divergence']['offset']} on"
    for each in answer["candidates"]:
        lost = each["lost"]["records"]
        if lost or not each["safe"]:
            loss = count_text(lost, "record") if lost else "damaged batches"
            return f"broker {each['broker']} as leader would lose {loss}"
        if each["truncations"]:
            cut = each["truncations"][0]["broker"]
            return f"broker {cut} would be cut to follow broker {each['broker']}"
    return ""


def _check_epoch(marker: RootMarker) -> None:
    """Refuse a marker's epoch if the metadata do not explain it."""
    if marker.registered_epoch is None:
        raise GuardRefusedError(
            "ATTEST_EPOCH_UNKNOWN",
            f"{marker.root}: the metadata know no broker {marker.broker}. Give the directory that "
            "has newer metadata, too",
        )
    if marker.broker_epoch not in {UNKNOWN_BROKER_EPOCH, marker.registered_epoch}:
        raise GuardRefusedError(
            "ATTEST_EPOCH_UNKNOWN",
            f"{marker.root}: its marker names broker epoch {marker.broker_epoch}, the metadata "
            f"{marker.registered_epoch}: one of them is older. Give the directory that has newer "
            "metadata, too, or start the broker as it is",
        )


def _name(answer: _Row) -> str:
    return f"{answer['topic']}-{answer['partition']}"


def _list(brokers: Iterable[int | None]) -> str:
    return ",".join(map(str, brokers))
