"""Build each log directory's topic catalogue, from cluster metadata and options."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import humanize

from pylog_spark.options import JobOptions
from pylog_spark.options.load import broker_config
from pylog_spark.outcomes import Reason
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    read_broker_metadata,
)
from storage_core.catalog.topic_catalog import TopicCatalog, build_topic_catalog
from storage_core.catalog.topic_dump import TopicDump
from storage_core.checkpoint.broker_files import (
    MAX_META_PROPERTIES_BYTES,
    MetaProperties,
    is_same_broker,
    parse_meta_properties,
)
from storage_core.config.broker_config import spell_directories
from storage_core.errors import GuardRefusedError, PylogError
from storage_core.filenames import META_PROPERTIES_FILE
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import LogRoot
from storage_core.roots.own_catalog import read_carried_configs
from storage_core.wording import time_text


def build_catalogs(roots: Sequence[LogRoot], options: JobOptions) -> dict[str, TopicCatalog]:
    """Return the catalogue of each root.

    A broker keeps its cluster's metadata in one of its log directories: the other ones that the
    run is given know their topics from there. Metadata that are damaged, or of which the broker has
    two copies that differ, count for nothing: the catalogue then says so, and knows no config.
    """
    properties = {root.location: read_meta_properties(root.location) for root in roots}
    copies = {
        root.location: directory
        for root in roots
        if (directory := Path(root.location) / CLUSTER_METADATA_DIRECTORY).is_dir()
    }
    answers: dict[tuple[Path, ...], ClusterMetadata | PylogError] = {}
    configured = broker_config(options).directories
    catalogs = {}
    for root in roots:
        own = properties[root.location]
        shared = tuple(
            directory
            for location, directory in copies.items()
            if location == root.location or is_same_broker(own, properties[location])
        )
        if shared and shared not in answers:
            try:
                answers[shared] = read_broker_metadata(shared)
            except PylogError as error:
                answers[shared] = error
        metadata = answers.get(shared)
        if isinstance(metadata, PylogError):
            catalogs[root.location] = TopicCatalog(metadata_problem=str(metadata))
            continue
        named = [
            other.location for other in roots if is_same_broker(own, properties[other.location])
        ]
        node = None if metadata is None or own is None else metadata.brokers.get(own.node_id or 0)
        registered = () if node is None else node.log_directories
        directories = None
        if root.role.facts.is_owned_by_broker:
            directories = configured or spell_directories(named)
        catalogs[root.location] = build_topic_catalog(
            metadata=metadata,
            dumps=[dump for dump in (_carried(root), options.topic_dump) if dump is not None],
            node_id=None if own is None else own.node_id,
            explicit=options.topic_configs,
            assume_defaults=options.assume_defaults,
            broker=options.broker_settings,
            broker_overrides=options.broker_overrides,
            settings=options.topic_settings,
            directories=directories,
            are_all_directories=bool(configured) or len(named) >= len(registered) > 0,
            release=options.release,
        )
    return catalogs


def _carried(root: LogRoot) -> TopicDump | None:
    """Return the topic configs that a managed root carries since its ingest."""
    is_managed = root.role.facts.keeps_generations
    return read_carried_configs(root.location) if is_managed else None


def dump_notes(options: JobOptions, roots: Sequence[LogRoot] = ()) -> tuple[str, ...]:
    """Return notes on exported topic configs: how old they are.

    Args:
        roots: Its log directories; of managed ones with what they carry since their ingest.
    """
    dumps = [options.topic_dump, *map(_carried, roots)]
    return tuple(_dump_note(dump, options) for dump in dumps if dump is not None)


def _dump_note(dump: TopicDump, options: JobOptions) -> str:
    age_ms = options.now_ms - dump.taken_ms
    age = humanize.naturaldelta(timedelta(milliseconds=abs(age_ms)))
    note = (
        f"{dump.file}: configs of {len(dump.topics)} topics, exported {time_text(dump.taken_ms)}, "
        f"{age} {'before' if age_ms >= 0 else 'after'} the run's clock"
    )
    if age_ms > options.topic_dump_max_age_ms:
        note = f"WARNING: {note}: older than topic_dump_max_age, export them again"
    return note


def require_known(catalogs: Mapping[str, TopicCatalog]) -> None:
    """Refuse metadata that do not count."""
    for catalog in catalogs.values():
        if catalog.metadata_problem:
            raise GuardRefusedError(Reason.METADATA_UNKNOWN, catalog.metadata_problem)


def problem_notes(catalogs: Mapping[str, TopicCatalog]) -> tuple[str, ...]:
    """Return a note for each broker whose metadata do not count."""
    problems = {each.metadata_problem: None for each in catalogs.values()}
    return tuple(
        f"{problem}: no config of the broker's topics counts ({Reason.METADATA_UNKNOWN.value})"
        for problem in problems
        if problem
    )


def read_meta_properties(location: str) -> MetaProperties | None:
    """Return a log directory's ``meta.properties``, its broker's identity, or None."""
    content = BrokerRoot(Path(location)).read(
        META_PROPERTIES_FILE, limit_bytes=MAX_META_PROPERTIES_BYTES
    )
    if content is None:
        return None
    return parse_meta_properties(content, file=f"{location}/{META_PROPERTIES_FILE}")
