"""Purge directories, or foretell it. A result says what went, or would go, and why something did
not."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from pylog_spark.outcomes import Status
from pylog_spark.schemas import Failure, PartitionName
from pylog_spark.tasks.ahead import AT_ONCE, PURGES_AT_ONCE, map_ahead
from pylog_spark.tasks.message import DirectoryResult, attempt
from storage_core.commit.purge import Purged
from storage_core.errors import GuardRefusedError
from storage_core.roots.root import PurgeT, Stretch


def purge_stretches(
    stretches: Sequence[Stretch[PurgeT]],
    find_due: Callable[[Stretch[PurgeT]], Stretch[PurgeT]],
    apply: Callable[[PurgeT], Purged],
    *,
    is_here: bool,
    dry_run: bool,
) -> Iterator[DirectoryResult]:
    """Purge directories, several at once; pass over those without remains.

    Args:
        find_due: As in ``RootPurge``, and so are the next two.
        is_here: Whether that lies on a disk of this host.
        dry_run: Whether nothing is removed.
    """

    def purge_one(purge: PurgeT) -> DirectoryResult:
        name = purge.partition
        head = DirectoryResult(
            topic=None if name is None else name.topic,
            partition=None if name is None else name.partition,
            directory=purge.location,
        )
        return purge_directory(head, partial(apply, purge), dry_run=dry_run)

    due = chain.from_iterable(map_ahead(find_due, stretches))
    at_once = PURGES_AT_ONCE if is_here else AT_ONCE
    results = map_ahead(purge_one, due, at_once=at_once)
    return (each for each in results if each.status is not None)


def purge_directory(
    head: DirectoryResult, work: Callable[[], Purged], *, dry_run: bool
) -> DirectoryResult:
    """Purge one directory; the status is None for nothing to purge.

    Args:
        work: Deletes the files and directories of a purge; in a dry run, lists them.
        dry_run: Whether nothing is removed.
    """

    def purge(head: DirectoryResult) -> DirectoryResult:
        try:
            purged = work()
        except GuardRefusedError as error:
            failure = Failure(error=error.reason)
            return replace(head, status=Status.SKIPPED.value, reason=error.code, failure=failure)
        if not purged.files:
            return replace(head, status=None)
        return replace(
            head,
            status=(Status.PLANNED if dry_run else Status.DONE).value,
            bytes_before=purged.size_bytes,
            bytes_after=0,
            steps=json.dumps(purged.steps),
        )

    name = PartitionName(topic=head.topic, partition=head.partition)
    return attempt(replace(head, status=Status.FAILED.value), purge, name)
