"""What a run that was killed left of its work, taken up by the next one on the directory.

Its commits that had begun are finished from their claims, and count as made: cleaner points go into
the checkpoint. If then every partition is in a state that is known, as it was or done, the marker
of a clean shutdown that the killed run took away is put back: nothing has to be recovered.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pylog_spark.tasks.commit_claim import current_boot, resume_claim, revoke_claim
from pylog_spark.tasks.scratch import find_claims, find_remembered_markers
from pylog_spark.tasks.visits import SEEN, was_visited, watermarks_mark
from storage_core.checkpoint.clean_shutdown import UNKNOWN_BROKER_EPOCH, CleanShutdown
from storage_core.errors import InvalidNameError, ManifestError, PylogError, StorageError
from storage_core.filenames import MAX_OFFSET, TopicPartition, parse_partition_directory
from storage_core.local_files import read_small
from storage_core.store.json_fields import parse_json_object
from storage_core.store.local import storage_errors, sync_folder

_log: Final = logging.getLogger(__name__)
_MOST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What became of the work of killed runs.

    Attributes:
        points: Where the next round begins in partitions whose compaction was finished.
        marker: The marker that the directory had and may have again, None for none.
    """

    points: Mapping[TopicPartition, int] = field(default_factory=dict)
    marker: CleanShutdown | None = None


def resume_killed_runs(log_directory: Path, *, was_abandoned: bool = False) -> Resumed:
    """Finish what killed runs began in a log directory; under its lock, before anything is swept.

    Args:
        log_directory: The directory.
        was_abandoned: Whether the lock's file was there before this run took it.

    Raises:
        StorageError: The directory of scratch files cannot be listed.
    """
    points: dict[TopicPartition, int] = {}
    is_known = True
    for path in find_claims(log_directory):
        try:
            finished = resume_claim(path, log_directory=log_directory, was_abandoned=was_abandoned)
        except PylogError as error:
            _log.warning("%s: a commit of a killed run is left to recovery: %s", path, error)
            is_known = False
            _drop(path, log_directory)
            continue
        if finished is None:
            continue
        location, result = finished
        _log.warning("%s: finished the commit of a run that was killed", location)
        partition, point = _partition_of(location), result.get("next_offset")
        if partition is not None and type(point) is int and 0 <= point <= MAX_OFFSET:
            points[partition] = point
    markers = [
        _read_marker(path, log_directory, was_abandoned=was_abandoned)
        for path in find_remembered_markers(log_directory)
    ]
    has_one = is_known and len(markers) == 1
    return Resumed(points=points, marker=markers[0] if has_one else None)


def _drop(claim: Path, log_directory: Path) -> None:
    """Take a claim away that cannot be finished, and before it what calls the directory clean.

    Should this run be killed as well, the next one finds no claim that tells of it.
    """
    with storage_errors(claim):
        for marker in find_remembered_markers(log_directory):
            marker.unlink(missing_ok=True)
            sync_folder(marker.parent)
        if claim.is_symlink():
            claim.unlink()
            return
    revoke_claim(claim)


def encode_remembered(marker: CleanShutdown, log_directory: Path) -> bytes:
    """Return what a run writes down of the marker that it takes away."""
    known = {
        "boot": current_boot(),
        "broker_epoch": marker.broker_epoch,
        SEEN: watermarks_mark(log_directory),
    }
    return json.dumps(known).encode()


def _read_marker(path: Path, log_directory: Path, *, was_abandoned: bool) -> CleanShutdown | None:
    """Return the marker that a killed run took away, None if it is not to be believed."""
    try:
        said = parse_json_object(read_small(path, _MOST_BYTES), str(path))
        boot = said.optional_word("boot")
        epoch = said.integer("broker_epoch", least=UNKNOWN_BROKER_EPOCH)
        seen = said.optional_word(SEEN)
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error
    except ManifestError:
        return None
    if boot is None or boot != current_boot():
        return None
    if was_visited(log_directory, seen=seen, was_abandoned=was_abandoned):
        return None
    return CleanShutdown(broker_epoch=epoch)


def _partition_of(location: str) -> TopicPartition | None:
    try:
        return parse_partition_directory(Path(location).name)
    except InvalidNameError:
        return None
