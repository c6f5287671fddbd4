"""``pylog metadata rebuild``: metadata made anew, and what is not known."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pylog_spark.cli.runner import Call, Tasks, Work, load_options
from pylog_spark.cluster.cli.metadata import way_back
from pylog_spark.cluster.metadata_rebuild import Rebuild, rebuild_metadata
from pylog_spark.discovery import resolve_roots
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.declared import (
    CONTROLLER_LISTENER,
    INITIAL_CONTROLLERS,
    INTO,
    OLDER_COPY,
    RELEASE_VERSION,
    ROOTS,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.outcomes import Status
from pylog_spark.report import STATUS, number_column, text_column
from pylog_spark.view import NOTHING, Block, OutputLine, Row, Sentence, Table, TableKind, View
from storage_core.catalog.cluster_metadata import Voter
from storage_core.checkpoint.checkpoints import is_reserved_directory_id, parse_uuid
from storage_core.cluster.metadata_rebuild import bootstrap_names
from storage_core.errors import ConfigError
from storage_core.filenames import BOOTSTRAP_SNAPSHOT_FILE
from storage_core.wording import count_text

_FACT_KEYS: Final = ("part", "subject", "detail")
_TARGET_TABLE: Final = TableKind(
    columns=(
        number_column("node", "node_id", rank=0),
        STATUS,
        text_column("directory id", "directory_id", rank=2, empty=NOTHING),
        text_column("log directory", "root", rank=1, folds=True),
    ),
)
_FACT_TABLE: Final = TableKind(
    columns=(
        text_column("not known", "part"),
        text_column("of", "subject", rank=1, folds=True, empty="the cluster"),
    ),
    note=lambda row: row["detail"],
)
# As ``kafka-storage format --initial-controllers`` takes it: 1@host:9093:directory-id.
_CONTROLLER: Final = re.compile(
    r"(?P<node>[0-9]{1,9})@(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:@,]+):(?P<port>[0-9]{1,5})"
    r":(?P<id>[A-Za-z0-9_-]{22})"
)
_MAX_PORT: Final = 65_535


def parse_voters(text: str, listener: str) -> list[Voter]:
    """Return the voters of ``--initial-controllers``.

    Args:
        text: As Kafka's own command takes it; empty for none.
    """
    voters = []
    for part in text.split(",") if text else ():
        match = _CONTROLLER.fullmatch(part.strip())
        if match is None or int(match["port"]) > _MAX_PORT:
            reason = "expected NODE@HOST:PORT:DIRECTORY_ID with commas between"
            raise ConfigError(INITIAL_CONTROLLERS.label, part, reason)
        host = match["host"].strip("[]")
        directory_id = parse_uuid(match["id"])
        if is_reserved_directory_id(directory_id):
            raise ConfigError(INITIAL_CONTROLLERS.label, part, "its directory id is reserved")
        endpoint = f"{listener}://{host}:{match['port']}"
        voters.append(
            Voter(node_id=int(match["node"]), directory_id=directory_id, endpoints=(endpoint,))
        )
    for ids in ([voter.node_id for voter in voters], [voter.directory_id for voter in voters]):
        if len(set(ids)) < len(ids):
            reason = "expected each node and each directory id once"
            raise ConfigError(INITIAL_CONTROLLERS.label, text, reason)
    return voters


def _prepare(line: CommandLine) -> Call:
    options = load_options(line)
    voters = parse_voters(line[INITIAL_CONTROLLERS], line[CONTROLLER_LISTENER])
    roots = resolve_roots(line[ROOTS], role=options.role, must_open=False)
    return Call(line=line, options=options, roots=roots, subject=voters)


def _rebuild(call: Call, place: Any) -> Rebuild:
    return rebuild_metadata(
        place,
        call.locations,
        call.options,
        targets=call.line[INTO],
        release=call.line[RELEASE_VERSION],
        voters=call.subject,
        older=call.line[OLDER_COPY],
    )


def _view(call: Call, answer: Rebuild) -> View:
    status = Status.PLANNED if call.options.dry_run else Status.DONE
    metadata = answer.rebuilt.metadata
    names = bootstrap_names(metadata.release, call.subject)
    targets = [
        {
            "node_id": target.properties.node_id,
            "root": str(target.directory),
            "directory_id": target.properties.directory_id,
            "status": status.value,
            "is_formatted": target.is_formatted,
            "replaced_topics": target.replaced_topics,
            "bootstrap_entries": names,
            "cluster_id": answer.cluster_id,
            "release_version": metadata.release.version,
            "feature_levels": metadata.release.feature_levels,
            "brokers": [each.broker_id for each in metadata.brokers],
            "topics": len(metadata.topics),
            "partitions": answer.rebuilt.partition_count,
            "next_producer_id": metadata.next_producer_id,
        }
        for target in answer.targets
    ]
    facts = [
        {"part": each.part.value, "subject": each.subject or None, "detail": each.detail}
        for each in answer.rebuilt.unknowns
    ]

    def lines() -> Iterator[OutputLine]:
        yield from (OutputLine("metadata_rebuild", row) for row in targets)
        yield from (OutputLine("metadata_partition", row) for row in _partitions(answer))
        yield from (OutputLine("unknown_fact", row) for row in facts)

    return View(
        lines=lines(),
        csv=("unknown_fact", _FACT_KEYS),
        blocks=_blocks(call, answer, names, targets, facts),
        status=ExitCode.DONE,
    )


def _partitions(answer: Rebuild) -> Iterator[Row]:
    configs = answer.rebuilt.metadata.topic_configs
    for topic in answer.rebuilt.metadata.topics:
        for partition in topic.partitions.values():
            yield {
                "topic": topic.name,
                "partition": partition.partition,
                "topic_id": topic.topic_id,
                "replicas": list(partition.replicas),
                "directories": list(partition.directories),
                "isr": list(partition.isr),
                "leader_epoch": partition.leader_epoch,
                "config": dict(configs.get(topic.name, {})),
            }


def _blocks(
    call: Call,
    answer: Rebuild,
    names: Sequence[str],
    targets: Sequence[Row],
    facts: Sequence[Row],
) -> Iterator[Block]:
    metadata = answer.rebuilt.metadata
    yield Table(kind=_TARGET_TABLE, rows=targets)
    yield (
        f"{answer.cluster_id} at {metadata.release.version}: "
        f"{count_text(len(metadata.topics), 'topic')}, "
        f"{count_text(answer.rebuilt.partition_count, 'partition')} on "
        f"{count_text(len(metadata.brokers), 'broker')}; producer ids from "
        f"{metadata.next_producer_id:,} on"
    )
    for target in answer.targets:
        if target.replaced_topics:
            verb = "would replace" if call.options.dry_run else "replaced"
            yield Sentence(
                f"{target.directory}: {verb} an earlier snapshot of "
                f"{count_text(target.replaced_topics, 'topic')}, which no controller has begun "
                "with",
                "yellow",
            )
    yield ""
    yield Table(kind=_FACT_TABLE, rows=facts)
    yield (
        "each controller of the quorum has to begin with this snapshot: one that is only formatted "
        "may lead, and then brokers set all logs aside"
    )
    yield (
        f"start the controllers first, which have to be of Kafka {metadata.release.name} or later, "
        "then the brokers; no node with an older copy may start"
    )
    directories = [target.directory for target in answer.targets]
    if not call.options.dry_run:
        yield from way_back(directories, answer.formatted, names)
        # All have the same file.
        look = (
            ["metadata", "show", *map(str, directories)]
            if metadata.release.has_bootstrap_in_log
            else ["dump", str(directories[0] / BOOTSTRAP_SNAPSHOT_FILE)]
        )
        yield f"what the quorum begins with: `{shlex.join(['pylog', *look])}`"


REBUILD: Final = Work(
    name="metadata rebuild",
    prepare=_prepare,
    operate=_rebuild,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
