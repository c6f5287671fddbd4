"""Plan commands for log directories in an order without lost records.

First come commands that rebuild files derived from a log: they cut nothing. Then come recoveries of
logs from their first segment on. Last, commands move unreadable files aside and recover the rest.
No file is moved aside before the recovery that needs it. A command that may cut records keeps them.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Final

from storage_core.catalog.roles import Role
from storage_core.filenames import TopicPartition
from storage_core.maintenance.verification.finding_kinds import Cure, salvage_folder
from storage_core.maintenance.verification.findings import Severity

_THEN: Final = " && "
_MENDING: Final = frozenset({Cure.REBUILD, Cure.RECOVER, Cure.CUT})
# A partition of a log directory; None for the directory itself.
Place = tuple[str, TopicPartition | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A finding, as far as a plan needs it."""

    root: str
    partition: TopicPartition | None  # the partition; None for the directory itself
    severity: Severity
    cure: Cure
    command: str  # the command; empty where only a person can mend it
    is_unreadable: bool = False

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.root, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCut:
    """What a broker's start would cut from a partition."""

    root: str
    partition: TopicPartition
    size_bytes: int
    is_doubtful: bool  # whether they hold records that can be read, or that were acknowledged
    records: int = 0

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.root, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Prescription:
    """What to run."""

    commands: tuple[str, ...]  # in order
    # Readable records that they cut, by log; none where they cut none.
    cut_records: Mapping[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class _OrderedLogs:
    """Logs of a topic to order from their start; removals before that."""

    removals: dict[str, None] = field(default_factory=dict)
    most_bytes: int = 0


def prescribe(
    roots: Mapping[str, Role],
    complaints: Iterable[Complaint],
    cuts: Sequence[StartCut],
    sizes: Mapping[Place, int],
    hindered: Set[str] = frozenset(),
    from_start: Mapping[Place, int] | None = None,
) -> Prescription:
    """Return commands to mend all errors or worse, in order.

    Args:
        roots: The log directories, all of one broker's at best, and what they are.
        cuts: The cuts of a broker's start.
        from_start: Readable records that a recovery from the start cuts, by log.
    """
    listed = _without_vain_rebuilds(list(complaints))
    bad = [each for each in listed if each.severity.rank >= Severity.ERROR.rank]
    mended = {each.place for each in bad if each.command}
    cut_places = {each.place for each in listed if each.cure is Cure.CUT and each.command}
    cut_places |= {(cut.root, cut.partition) for cut in cuts}
    # A log is not whole if a start cuts it: nothing is rebuilt from it alone. Recovery takes
    # topics: if one log of a topic may be cut, that counts for all its logs.
    together = recovered_together(roots)
    cutting = {
        (together[root], of.topic): _OrderedLogs()
        for root, of in (each.place for each in listed)
        if of is not None and (root, of) in mended & cut_places
    }
    recovering: dict[tuple[tuple[str, ...], str], _OrderedLogs] = {}
    rebuilt: dict[str, dict[str, None]] = {}
    set_aside: dict[str, None] = {}
    room = {each.command: None for each in bad if each.cure is Cure.MAKE_ROOM}
    recovered = {each.place for each in bad if each.cure is Cure.RECOVER} | cut_places
    for each in bad:
        removal, _, last = each.command.rpartition(_THEN)
        if each.cure is Cure.SET_ASIDE and removal:
            set_aside[removal] = None
        elif each.cure not in _MENDING or not each.command:
            continue
        elif each.partition is None or each.place not in recovered:
            rebuilt.setdefault(last, {}).update({removal: None} if removal else {})
        else:
            topic = (together[each.root], each.partition.topic)
            logs = cutting.get(topic) or recovering.setdefault(topic, _OrderedLogs())
            logs.removals.update({removal: None} if removal else {})
            logs.most_bytes = max(logs.most_bytes, sizes.get(each.place, 0))
    for_people = {
        each.partition.topic
        for each in bad
        if each.severity is Severity.FATAL and not each.command and each.partition is not None
    }
    commands = [_THEN.join((*removals, rebuild)) for rebuild, removals in rebuilt.items()]
    for group, limit in ((cutting, _may_cut), (recovering, lambda _: "")):
        for of_broker in dict.fromkeys(together.values()):
            topics = {topic: logs for (of, topic), logs in group.items() if of == of_broker}
            if topics and not hindered & set(of_broker):
                named = "".join(f" --topics {topic}" for topic in topics)
                most = max(logs.most_bytes for logs in topics.values())
                recover = recover_command(of_broker, roots[of_broker[0]])
                command = f"{recover}{named} --from-start{limit(most)}"
                removals = [removal for logs in topics.values() for removal in logs.removals]
                if group is cutting:
                    commands.append(f"{command} --dry-run")
                commands.append(_THEN.join((*removals, command)))
    brokers = [
        root
        for root, role in roots.items()
        if role.facts.is_owned_by_broker and root not in hindered
    ]
    doubtful = [
        cut
        for cut in cuts
        if cut.is_doubtful and cut.root in brokers and cut.partition.topic not in for_people
    ]
    if brokers:
        commands += _as_a_start(brokers, doubtful, list(set_aside), are_all=not for_people)
    cut_records = {cut.place: cut.records for cut in doubtful} | {
        (root, of): records
        for (root, of), records in (from_start or {}).items()
        if of is not None and (together[root], of.topic) in cutting and root not in hindered
    }
    return Prescription(
        commands=tuple(dict.fromkeys([*room, *commands])),
        cut_records={place: records for place, records in cut_records.items() if records},
    )


def _without_vain_rebuilds(complaints: Sequence[Complaint]) -> list[Complaint]:
    """Return the complaints without rebuild commands that would stop at damage.

    Damage that stops a broker's load of a log also stops a rebuild of files from that log.
    """
    stopped = {
        each.place
        for each in complaints
        if each.is_unreadable or (each.severity is Severity.FATAL and not each.command)
    }
    return [
        replace(each, command="") if each.cure is Cure.REBUILD and each.place in stopped else each
        for each in complaints
    ]


def _as_a_start(
    roots: Sequence[str], cuts: Sequence[StartCut], set_aside: Sequence[str], *, are_all: bool
) -> list[str]:
    """Return commands that do what a start would do, but keep all cuts.

    If a person must decide about a log first (one that ends below its start, for instance), the
    commands cut only topics without such a log.

    Args:
        set_aside: Commands that move files aside; they come first.
        are_all: Whether no log waits for a person's decision.
    """
    limit = _may_cut(max((each.size_bytes for each in cuts), default=0))
    everything = recover_command(roots)
    commands = []
    if cuts and not are_all:
        topics = "".join(dict.fromkeys(f" --topics {each.partition.topic}" for each in cuts))
        cut_these = f"{everything}{topics}{limit}"
        commands = [f"{cut_these} --dry-run", cut_these]
    elif cuts:
        everything = f"{everything}{limit}"
        commands = [f"{everything} --dry-run"]
    if set_aside or (cuts and are_all):
        commands.append(_THEN.join((*set_aside, everything)))
    return commands


def _may_cut(most_bytes: int) -> str:
    return f" --allow-truncate --max-truncate-bytes {most_bytes}"


def recovered_together(roots: Mapping[str, Role]) -> dict[str, tuple[str, ...]]:
    """Return by root the roots that one command recovers together: all of its broker.

    A run marks a directory as closed only if it got all directories of the broker. A directory
    without the cluster's metadata takes its topics from the directory with it.
    """
    brokers = tuple(root for root, role in roots.items() if role.facts.is_owned_by_broker)
    return {
        root: brokers if role.facts.is_owned_by_broker else (root,) for root, role in roots.items()
    }


def recover_command(roots: Sequence[str], role: Role = Role.BROKER) -> str:
    """Return the recovery of log directories that keeps what it cuts."""
    names = " ".join(map(quote, roots))
    return f"pylog recover {names} --role {role.value} --salvage {quote(salvage_folder(roots[0]))}"


def heal_commands(broker: int, roots: Mapping[int, Sequence[str]]) -> list[str]:
    """Return commands that heal a broker's log directories from others; none without others.

    Args:
        broker: Its node id.
        roots: Log directories by node id, in the order in which they are asked.
    """
    donors = [root for other, own in roots.items() if other != broker for root in own]
    if not donors:
        return []
    own = roots[broker]
    sources = " ".join(f"--donor {quote(donor)}" for donor in donors)
    names, plan = " ".join(map(quote, own)), f"heal-{broker}.json"
    trash = quote(f"{own[0].rstrip('/')}-trash")
    return [
        f"pylog heal {names} {sources} --role broker --plan-out {plan}",
        f"pylog apply {plan} --trash {trash}",
    ]
