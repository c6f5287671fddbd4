"""``pylog metadata``: copies of the cluster's metadata, and voters without one."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.cli.runner import Call, Work, load_options, prepare_roots
from pylog_spark.cluster.metadata_copies import adopt_strays, list_metadata_copies, promote_copy
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.declared import DRY_RUN, INTO, ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.outcomes import Status
from pylog_spark.report import (
    PARTITION,
    STATUS,
    number_column,
    size_column,
    text_column,
    time_column,
)
from pylog_spark.run.guards import check_of_brokers, check_roots
from pylog_spark.view import (
    NOTHING,
    Block,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    Verbatim,
    View,
    lines_of,
)
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY, Voter
from storage_core.cluster.metadata_copies import (
    ComparedCopies,
    MetadataCopy,
    VotersSource,
    has_only_metadata,
)
from storage_core.cluster.metadata_promotion import Promotion
from storage_core.cluster.stray_adoption import StrayDirectory
from storage_core.filenames import CLUSTER_METADATA_TOPIC, META_PROPERTIES_FILE
from storage_core.wording import count_text

_BAD: Final = "bold red"
_SOURCES: Final = {
    VotersSource.RECORD: "the last record about voters",
    VotersSource.ELECTION: "the last election in the log",
    VotersSource.STATE: "quorum-state",
}
_COPY_TABLE: Final = TableKind(
    columns=(
        text_column("node", "node"),
        text_column("part", "part", rank=1),
        number_column("start", "log_start_offset", rank=6),
        number_column("end", "log_end_offset", rank=0),
        number_column("epoch", "last_epoch", rank=1),
        number_column("snapshot", "snapshot_offset", rank=3),
        text_column("can lead", "leads", rank=2),
        text_column("voted for", "vote", rank=5),
        number_column("topics", "topics", rank=7),
        size_column("bytes", "size_bytes", rank=8),
        time_column("last record", "last_timestamp_ms", rank=4),
    ),
    note=lambda row: row["error"] or "; ".join(row["notes"]),
    note_heading="remarks",
    note_style=lambda row: _BAD if row["error"] else "",
)


_PROMOTION_TABLE: Final = TableKind(
    columns=(
        number_column("node", "node_id", rank=0),
        STATUS,
        number_column("end", "log_end_offset", rank=1),
        number_column("epoch", "last_epoch", rank=3),
        number_column("files", "files", rank=5),
        size_column("bytes", "size_bytes", rank=4),
        text_column("copy of", "source", rank=2, folds=True),
    ),
)
_STRAY_KEYS: Final = (
    "root",
    "directory",
    "topic_id",
    "topic",
    "partition",
    "status",
    "reason",
    "detail",
)
_STRAY_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        STATUS,
        text_column("reason", "reason", rank=1, empty=NOTHING),
        text_column("directory", "directory", rank=2, folds=True),
    ),
    note=lambda row: row["detail"],
)
_OF_ELECTION: Final = ("leader_id", "leader_epoch", "voted_id", "voted_directory_id")
_COPY_KEYS: Final = (
    "root",
    "cluster_id",
    "node_id",
    "directory_id",
    "is_voter",
    "may_lead",
    "log_start_offset",
    "log_end_offset",
    "last_epoch",
    "last_timestamp_ms",
    "snapshot",
    "snapshot_offset",
    "size_bytes",
    "topics",
    "partitions",
    "brokers",
    "feature_levels",
    "kraft_version",
    "leader_id",
    "leader_epoch",
    "voted_id",
    "voted_directory_id",
    "notes",
    "error",
)


def _prepare(line: CommandLine) -> Call:
    return Call(line=line, options=load_options(line))


def _view(_: Call, clusters: Sequence[ComparedCopies]) -> View:
    copies = [copy for cluster in clusters for copy in cluster.copies]
    status = ExitCode.DONE
    if any(cluster.differences for cluster in clusters) or any(copy.doubtful for copy in copies):
        status = ExitCode.FINDINGS
    if any(copy.error for copy in copies):
        status = ExitCode.PARTLY_FAILED
    return View(
        lines=_lines(clusters),
        csv=("metadata_copy", _COPY_KEYS),
        blocks=_blocks(clusters),
        status=status,
    )


def _lines(clusters: Sequence[ComparedCopies]) -> Iterator[OutputLine]:
    for cluster in clusters:
        for copy in cluster.copies:
            yield OutputLine("metadata_copy", _row_of(cluster, copy))
        yield OutputLine(
            "metadata_quorum",
            {
                "cluster_id": cluster.cluster_id,
                "voters": [
                    {
                        "node_id": voter.node_id,
                        "directory_id": voter.directory_id,
                        "endpoints": list(voter.endpoints),
                        "root": None if (own := cluster.copy_of(voter)) is None else own.root,
                    }
                    for voter in cluster.voters
                ],
                "voters_source": cluster.voters_source,
                "majority": cluster.majority if cluster.voters else None,
                "majority_offset": cluster.majority_offset,
                "committed_offset": cluster.committed_offset,
                "log_end_offset": None
                if cluster.copies[0].error
                else cluster.copies[0].log_end_offset,
                "differences": [
                    {"roots": list(each.roots), "offset": each.offset}
                    for each in cluster.differences
                ],
            },
        )


def _row_of(cluster: ComparedCopies, copy: MetadataCopy) -> Row:
    """Return a copy's row for programs, under ``_COPY_KEYS``."""
    row = dict.fromkeys(_COPY_KEYS) | {
        "root": copy.root,
        "cluster_id": copy.cluster_id,
        "node_id": copy.node_id,
        "directory_id": None if copy.properties is None else copy.properties.directory_id,
        "is_voter": _is_voter(cluster, copy),
        "may_lead": cluster.may_lead(copy),
        "notes": [],
        "error": copy.error or None,
    }
    metadata = copy.metadata
    if metadata is None:
        return row
    last_ms = metadata.last_timestamp_ms
    return row | {
        "log_start_offset": copy.log_start_offset,
        "log_end_offset": copy.log_end_offset,
        "last_epoch": copy.last_epoch,
        "last_timestamp_ms": None if last_ms < 0 else last_ms,
        "snapshot": metadata.snapshot,
        "snapshot_offset": copy.snapshot_offset,
        "size_bytes": copy.size_bytes,
        "topics": len(metadata.topics),
        "partitions": sum(len(topic.partitions) for topic in metadata.topics.values()),
        "brokers": sorted(metadata.brokers),
        "feature_levels": dict(metadata.feature_levels),
        "kraft_version": copy.quorum.kraft_version,
        **{name: copy.election.get(name) for name in _OF_ELECTION},
        "notes": [*metadata.notes, *filter(None, [copy.damage]), *_doubts(copy)],
    }


def _doubts(copy: MetadataCopy) -> list[str]:
    """Return a note on a copy's epoch that is not believed."""
    if copy.doubtful is None:
        return []
    text = (
        f"{copy.doubtful} is not believed: it lies outside of the batch's checksum, and neither "
        "the batches around it nor the epoch file nor quorum-state have it. A node that starts on "
        "this copy believes it and wins elections by it: give the node another copy"
    )
    return [text]


def _is_voter(cluster: ComparedCopies, copy: MetadataCopy) -> bool | None:
    """Return whether a copy is a voter's; None where nothing says it."""
    if not cluster.voters or copy.node_id is None:
        return None
    return any(copy.is_of(voter) for voter in cluster.voters)


def _blocks(clusters: Sequence[ComparedCopies]) -> Iterator[Block]:
    if not clusters:
        yield (
            f"no copy of {CLUSTER_METADATA_TOPIC} is here: give the directories of controllers, "
            "and of each broker the one that has it (metadata.log.dir, else the first of "
            "log.dirs); where none is left, `pylog metadata rebuild` makes the metadata anew"
        )
    for cluster in clusters:
        rows = [{**_row_of(cluster, copy), **_texts(cluster, copy)} for copy in cluster.copies]
        yield Table(kind=_COPY_TABLE, rows=rows)
        yield from _sentences(cluster)


def _texts(cluster: ComparedCopies, copy: MetadataCopy) -> Row:
    """Return the texts of a copy's row on a terminal."""
    is_voter = _is_voter(cluster, copy)
    votes = copy.election.get("voted_id", -1), copy.election.get("leader_id", -1)
    vote = next((node for node in votes if node >= 0), None)
    may_lead = cluster.may_lead(copy)
    return {
        "node": "?" if copy.node_id is None else str(copy.node_id),
        "part": {True: "voter", False: "observer", None: "?"}[is_voter],
        "leads": {True: "yes", False: "no", None: "?" if is_voter else "-"}[may_lead],
        "vote": "-" if vote is None else str(vote),
    }


def _sentences(cluster: ComparedCopies) -> Iterator[Block]:
    readable = [copy for copy in cluster.copies if not copy.error]
    roots = ", ".join(copy.root for copy in cluster.copies)
    name = cluster.cluster_id or f"no cluster id in {roots}"
    if not readable:
        own = f": {roots}" if cluster.cluster_id else ""
        yield Sentence(f"{name}: no copy can be read{own}", _BAD)
        return
    yield _describe_voters(cluster, name)
    for each in cluster.differences:
        yield Sentence(
            f"{each.roots[0]} and {each.roots[1]} have other records from offset "
            f"{each.offset:,} on: each leader wrote its own",
            _BAD,
        )
    for copy in readable:
        for doubt in _doubts(copy):
            yield Sentence(f"{copy.root}: {doubt}", _BAD)
    end, committed = readable[0].log_end_offset, cluster.committed_offset
    if len(readable) > 1 and not cluster.differences:
        shortest = min(copy.log_end_offset for copy in readable)
        yield f"the copies agree: all go to offset {shortest:,}, the longest to {end:,}"
    if cluster.majority_offset is not None:
        yield f"a majority of the voters has the log up to offset {cluster.majority_offset:,}"
    if end > committed:
        records = f"{count_text(end - committed, 'record')} from offset {committed:,} on"
        yield Sentence(
            f"whether {records} are committed is not known: the copies of a majority tell"
            if cluster.majority_offset is None
            else f"{records} may never have been committed: fewer voters have them",
            "yellow",
        )
    if cluster.lacks_majority:
        yield "if the disks of these voters are lost for good, the longest copy is the best left:"
        # All of them: which one is the longest, and in which epochs nobody votes again.
        roots = shlex.join(copy.root for copy in cluster.copies)
        into = " ".join(f"--into {voter.node_id}=DIR" for voter in cluster.absent_voters)
        yield Verbatim(f"pylog metadata promote {roots} {into} --dry-run")


def _describe_voters(cluster: ComparedCopies, name: str) -> str:
    if cluster.voters_source is None:
        return f"{name}: nothing here names the voters"
    missing = cluster.absent_voters
    voters = ", ".join(map(_voter_text, cluster.voters))
    text = (
        f"{name}: {count_text(len(cluster.voters), 'voter')} by "
        f"{_SOURCES[cluster.voters_source]}: {voters}"
    )
    if not missing:
        return f"{text}; all of their copies are here"
    return f"{text}; without a copy here: {', '.join(map(_voter_text, missing))}"


def _voter_text(voter: Voter) -> str:
    if voter.directory_id is None:
        return str(voter.node_id)
    return f"{voter.node_id} ({voter.directory_id})"


# The copies, the voters that get one, and the log directories that had their identity before.
_Promoted = tuple[ComparedCopies, list[Promotion], frozenset[Path]]


def _promote(call: Call, _: Any) -> _Promoted:
    cluster, promotions = promote_copy(
        call.line[ROOTS],
        call.line[INTO],
        now_ms=call.options.now_ms,
        dry_run=call.line[DRY_RUN],
    )
    formatted = (
        each.directory
        for each in promotions
        if each.properties is None and not (each.is_done and has_only_metadata(each.directory))
    )
    return cluster, promotions, frozenset(formatted)


def _view_promotions(call: Call, answer: _Promoted) -> View:
    cluster, promotions, formatted = answer
    status = Status.PLANNED if call.line[DRY_RUN] else Status.DONE
    rows = [
        {
            "node_id": each.voter.node_id,
            "root": str(each.directory),
            "directory_id": each.voter.directory_id,
            "status": (Status.SKIPPED if each.is_done else status).value,
            "source": each.source.root,
            "log_end_offset": each.source.log_end_offset,
            "last_epoch": each.source.last_epoch,
            "committed_offset": cluster.committed_offset,
            "files": len(each.files),
            "size_bytes": each.size_bytes,
            "is_formatted": each.properties is None,
        }
        for each in promotions
    ]
    return View(
        lines=lines_of("metadata_promotion", rows),
        csv=("metadata_promotion", rows[0]),
        blocks=[
            Table(kind=_PROMOTION_TABLE, rows=rows),
            *_after_promotions(call, cluster, promotions, formatted),
        ],
        status=ExitCode.DONE,
    )


def way_back(
    directories: Iterable[Path],
    formatted: Collection[Path],
    names: Sequence[str] = (CLUSTER_METADATA_DIRECTORY,),
) -> Iterator[Block]:
    """Yield the command that takes new metadata logs away again.

    Args:
        formatted: Log directories that had their ``meta.properties`` before.
        names: What else each directory got.
    """
    places = []
    for directory in directories:
        # First the identity: a node with it and without a log may begin an empty cluster.
        places += [] if directory in formatted else [str(directory / META_PROPERTIES_FILE)]
        places += [str(directory / name) for name in names]
    if places:
        yield "the way back, before one of these nodes has started:"
        yield Verbatim(shlex.join(["rm", "-r", *places]))


def _after_promotions(
    call: Call,
    cluster: ComparedCopies,
    promotions: Sequence[Promotion],
    formatted: Collection[Path],
) -> Iterator[Block]:
    source, committed = promotions[0].source, cluster.committed_offset
    uncommitted = source.log_end_offset - committed
    if uncommitted:
        yield Sentence(
            f"{count_text(uncommitted, 'record')} from offset {committed:,} on count from then "
            "on; nothing here says that the quorum had committed them",
            "yellow",
        )
    nodes = {each.voter.node_id for each in promotions}
    with_copy = [
        voter
        for voter in cluster.voters
        if voter.node_id in nodes or cluster.copy_of(voter) is not None
    ]
    missing = cluster.majority - len(with_copy)
    if missing > 0:
        yield Sentence(
            f"no leader yet: of {count_text(len(cluster.voters), 'voter')}, {missing} more must "
            "get a copy",
            "yellow",
        )
    yield "start the controllers first, then the brokers"
    if not call.line[DRY_RUN]:
        yield from way_back([each.directory for each in promotions], formatted)
        if any(each.is_done for each in promotions):
            yield "format a directory again that was formatted before the first of these calls"
    yield from _about_records(cluster, promotions)


def _about_records(cluster: ComparedCopies, promotions: Sequence[Promotion]) -> Iterator[Block]:
    """Warn of brokers whose new disks have no records."""
    metadata = promotions[0].source.metadata
    registered = () if metadata is None else metadata.brokers
    empty = [each for each in promotions if each.voter.node_id in registered]
    if not empty:
        return
    names = ", ".join(str(each.voter.node_id) for each in empty)
    yield Sentence(
        f"brokers as well, whose disks have no records now: {names}. An empty replica that leads "
        "cuts the full ones: start these nodes as controllers alone (process.roles=controller) "
        "until the brokers that have the records lead. Whom the controller elects, once these have "
        "their copies:",
        "bold yellow",
    )
    own = [copy for copy in cluster.copies if copy.node_id in registered]
    roots = [*(copy.root for copy in own), *(str(each.directory) for each in empty)]
    nodes = [*(copy.node_id for copy in own), *(each.voter.node_id for each in empty)]
    up = ",".join(map(str, dict.fromkeys(nodes)))
    yield Verbatim(f"pylog audit {shlex.join(dict.fromkeys(roots))} --up {up}")


def _view_strays(call: Call, answer: tuple[ComparedCopies, list[StrayDirectory]]) -> View:
    cluster, strays = answer
    unreadable = [copy for copy in cluster.copies if copy.error]
    status = Status.PLANNED if call.options.dry_run else Status.DONE
    rows = [
        {
            "root": each.root,
            "directory": each.name,
            "topic_id": each.topic_id,
            "topic": None if each.partition is None else each.partition.topic,
            "partition": None if each.partition is None else each.partition.partition,
            "status": (Status.SKIPPED if each.reason else status).value,
            "reason": None if each.reason is None else each.reason.value,
            "detail": each.detail,
        }
        for each in strays
    ]
    adopted = sum(each.reason is None for each in strays)
    roots = shlex.join(dict.fromkeys(each.root for each in strays))
    blocks: list[Block] = [Table(kind=_STRAY_TABLE, rows=rows)]
    if not strays:
        blocks.append("no stray directory is here")
    elif adopted:
        blocks.append(f"before the brokers start, see who may lead: `pylog audit {roots}`")
    notes = [
        f"{copy.root}: its copy of the metadata, perhaps the longest, cannot be read: {copy.error}"
        for copy in unreadable
    ]
    return View(
        lines=[
            *lines_of("stray_directory", rows),
            *(OutputLine("metadata_copy", _row_of(cluster, copy)) for copy in unreadable),
        ],
        csv=("stray_directory", _STRAY_KEYS),
        blocks=blocks,
        notes=[*call.notes, *notes],
        status=ExitCode.PARTLY_FAILED if unreadable else ExitCode.DONE,
    )


SHOW: Final = Work(
    name="metadata show",
    prepare=_prepare,
    operate=lambda call, _: list_metadata_copies(call.line[ROOTS], now_ms=call.options.now_ms),
    view=_view,
)
PROMOTE: Final = Work(
    name="metadata promote", prepare=_prepare, operate=_promote, view=_view_promotions
)
ADOPT: Final = Work(
    name="metadata adopt",
    prepare=lambda line: prepare_roots(
        line,
        lambda roots, _: check_of_brokers(roots, "only brokers set directories aside"),
        partial(check_roots, are_of_brokers=True),
    ),
    operate=lambda call, _: adopt_strays(
        call.locations, now_ms=call.options.now_ms, dry_run=call.options.dry_run
    ),
    view=_view_strays,
)
