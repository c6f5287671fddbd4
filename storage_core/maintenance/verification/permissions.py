"""Find files of a log directory closed to the broker's user. This program's user may be able to
open them.

The doctor is often run as root, and so was what left the files: a broker that is another user takes
a log directory offline for one file of its that it may not open. Who that user is, no file says;
most of what lies in a log directory is its own.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from storage_core.checkpoint.checkpoints import CHECKPOINT_FILES
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    LOG_SUFFIX,
    META_PROPERTIES_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    kind_of,
    offset_of,
    parse_cluster_snapshot,
)
from storage_core.local_files import ROOT_USER, Entry, open_folder, scan_open
from storage_core.maintenance.verification.collector import FindingCollector
from storage_core.maintenance.verification.findings import Code
from storage_core.maintenance.verification.options import BrokerUser

_READ: Final = 0o4
_READ_WRITE: Final = 0o6
_LIST: Final = 0o5
_CHANGE: Final = 0o7
_READ_FILES: Final = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, QUORUM_STATE_FILE})


def find_forbidden(path: Path, findings: FindingCollector) -> BrokerUser | None:
    """Report a log directory's files, but partitions', forbidden to its broker.

    Returns:
        The broker's user; None where it is root, who may do everything.
    """
    with open_folder(path, may_be_link=True) as folder:
        own, entries = os.fstat(folder), scan_open(folder)
    owners = Counter(entry.facts.st_uid for entry in entries).most_common(1)
    if not owners or owners[0][0] == ROOT_USER:
        return None
    user = BrokerUser(owners[0][0])
    if not user.may(own, _LIST):
        findings.add(Code.FILE_FORBIDDEN, _message(user, own))
    elif not user.may(own, _CHANGE):
        findings.add(Code.LOG_DIRECTORY_FORBIDDEN, _message(user, own))
    for entry in entries:
        access = _READ if entry.name in {META_PROPERTIES_FILE, *CHECKPOINT_FILES} else 0
        if entry.is_folder:
            access = _CHANGE
        elif entry.name == LOCK_FILE:
            access = _READ_WRITE
        if not entry.is_link and not user.may(entry.facts, access):
            findings.add(Code.FILE_FORBIDDEN, _message(user, entry.facts), file=entry.name)
    return user


def check_rights(
    entries: Iterable[Entry], user: BrokerUser, *, last_base: int, findings: FindingCollector
) -> None:
    """Report a partition's files closed to a broker at its start.

    Args:
        last_base: Base offset of the last segment, whose indexes take new entries.
    """
    for entry in entries:
        kind, access = kind_of(entry.name), 0
        is_index = kind in {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX}
        is_written = is_index and offset_of(entry.name) == last_base
        if kind in {LOG_SUFFIX, TXN_INDEX_SUFFIX} or is_written:
            access = _READ_WRITE
        elif kind is not None or entry.name in _READ_FILES or parse_cluster_snapshot(entry.name):
            access = _READ
        if entry.is_file and not user.may(entry.facts, access):
            findings.add(Code.FILE_FORBIDDEN, _message(user, entry.facts), file=entry.name)


def _message(user: BrokerUser, facts: os.stat_result) -> str:
    mode = stat.filemode(facts.st_mode)
    return (
        f"user {facts.st_uid} owns it ({mode}), most of the log directory is user {user.number}'s"
    )
