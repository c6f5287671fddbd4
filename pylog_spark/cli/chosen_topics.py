"""Check that ``--topics`` and ``--exclude`` name what is there.

A name that no topic has is a typo far more often than a wish. Where it would choose, the command is
refused. Where it would leave out, it is refused if another name is near: what was to be spared
would be worked on. A pattern that matches nothing is said, and so is the rest.
"""

from collections.abc import Collection, Iterable, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Final

from pylog_spark.options.declared import EXCLUDE, TOPICS
from storage_core.catalog.log_directories import classify_directory
from storage_core.catalog.roles import local_path
from storage_core.catalog.topic_filter import is_pattern, nearest_name, unmatched_globs
from storage_core.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from pylog_spark.options import JobOptions
    from storage_core.roots.open_root import LogRoot

# So many roots are named in a sentence.
_NAMED_ROOTS: Final = 3


def check_topics(
    include: Sequence[str], exclude: Sequence[str], topics: Collection[str], roots: Sequence[str]
) -> tuple[str, ...]:
    """Return a line for each pattern that matches no topic."""
    where = ", ".join(roots[:_NAMED_ROOTS]) + (" and others" if len(roots) > _NAMED_ROOTS else "")
    notes = []
    for option, globs in ((TOPICS, include), (EXCLUDE, exclude)):
        for glob in unmatched_globs(globs, topics):
            near = None if is_pattern(glob) else nearest_name(glob, topics)
            if not is_pattern(glob) and (option is TOPICS or near is not None):
                meant = "" if near is None else f"; did you mean {near}?"
                reason = f"no such topic in {where}{meant} (a pattern may match none: '[{glob[0]}]"
                raise ConfigError(option.label, glob, f"{reason}{glob[1:]}')")
            notes.append(f"{option.label} {quote(glob)} matches no topic in {where}")
    return tuple(notes)


def topic_notes(options: "JobOptions", roots: "Sequence[LogRoot]") -> tuple[str, ...]:
    """Return a line for each pattern without a topic in the roots.

    Where an inventory stands for a listing, or a root cannot be listed, nobody knows it so early.
    """
    if not (options.include or options.exclude):
        return ()
    if options.file_list is not None and any(root.role.facts.takes_inventory for root in roots):
        return ()
    topics: set[str] = set()
    for root in roots:
        path = local_path(root.location)
        if root.role.facts.has_manifests and path is not None and not path.exists():
            continue  # it is to be made
        try:
            topics |= topics_of(root.open().directories())
        except StorageError:
            return ()
    places = [root.location for root in roots]
    return check_topics(options.include, options.exclude, topics, places)


def topics_of(directories: Iterable[str]) -> set[str]:
    """Return the topics of partition directories, also of renamed ones. Kafka renames a
    directory by its state."""
    partitions = (classify_directory(name)[1] for name in directories)
    return {partition.topic for partition in partitions if partition is not None}
