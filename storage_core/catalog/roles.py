"""The role of a root of logs: broker, mirror or managed. The role decides who may write there.

A role is said by the owner. Without that it is guessed from what lies there, and a guess is good
enough for reading only.
"""

import enum
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from storage_core.errors import GuardRefusedError, ObjectNotFoundError
from storage_core.filenames import MANAGED_ROOT_FILE, META_PROPERTIES_FILE
from storage_core.redaction import TIER_LOCATION

_ROLE_SWITCH: Final = "--role"


class Role(enum.StrEnum):
    """The role of a root.

    BROKER: ``log.dirs`` of a stopped broker on local disks of this host; everything may be done,
    under Kafka's lock. MIRROR: a copy that somebody else's sync keeps writing; read only.
    MANAGED: ours; everything may be done, by manifest.
    """

    BROKER = "broker"
    MIRROR = "mirror"
    MANAGED = "managed"

    @property
    def facts(self) -> "RoleFacts":
        """What holds for every root of this role."""
        return _FACTS[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """The facts of a role, without an opened root."""

    phrase: str  # the role's name in a sentence, with its article
    # Whether a broker starts on it: its lock and its checkpoints count, a recovery may cut its
    # logs, and what was deleted waits there for its end.
    is_owned_by_broker: bool = False
    # Whether somebody else's sync owns its files: they are only read, and may be of different ages.
    is_synced: bool = False
    # Whether a marker of a clean shutdown says that its logs were closed, and ``meta.properties``
    # whose they are.
    has_marker: bool = False
    # Whether who wrote its logs has closed them, so that no index ends in zeros.
    has_closed_logs: bool = False
    # Whether manifests say what its partitions have, not listings and checkpoints.
    has_manifests: bool = False
    # Whether what a commit replaces stays until a purge: it needs no trash.
    keeps_generations: bool = False
    takes_inventory: bool = False  # whether an inventory may stand for its listing


_FACTS: Final = {
    Role.BROKER: RoleFacts(
        phrase="a broker's log directory",
        is_owned_by_broker=True,
        has_marker=True,
        has_closed_logs=True,
    ),
    Role.MIRROR: RoleFacts(
        phrase="a mirror", is_synced=True, has_marker=True, takes_inventory=True
    ),
    Role.MANAGED: RoleFacts(
        phrase="a managed root", has_closed_logs=True, has_manifests=True, keeps_generations=True
    ),
}


def guess_role(root: str | Path) -> Role:
    """Guess the role of a root.

    Args:
        root: A local path or a URL.

    Returns:
        BROKER for a local directory with ``meta.properties``, MANAGED for a directory or URL with
        our ``pylog-root.json``, else MIRROR, which is where the least can go wrong: also for a tier
        (KIP-405), which brokers keep writing.
    """
    if TIER_LOCATION.match(str(root)):
        return Role.MIRROR
    directory = local_path(root)
    if directory is None:
        return Role.MANAGED if _has_object(str(root), MANAGED_ROOT_FILE) else Role.MIRROR
    # Whoever lists a directory reports that it may not be opened.
    with suppress(PermissionError):
        if (directory / MANAGED_ROOT_FILE).is_file():
            return Role.MANAGED
        if (directory / META_PROPERTIES_FILE).is_file():
            return Role.BROKER
    return Role.MIRROR


def require_role(role: Role | None, root: str | Path) -> Role:
    """Return the role of a root that is going to be written.

    Args:
        role: The role that the owner named, None if nobody did.
    """
    if role is None:
        guessed = guess_role(root)
        # Overriding the role of a mirror is pointless: mirrors are never written.
        is_writable = not guessed.facts.is_synced
        raise GuardRefusedError(
            "ROLE_NOT_SAID",
            f"{root} looks like {guessed.facts.phrase}"
            f"{'' if is_writable else ', which pylog only reads'}; a command that writes needs its "
            "role",
            f"{_ROLE_SWITCH} {guessed if is_writable else 'broker or managed, if it is one'}",
        )
    if role.facts.is_synced:
        raise GuardRefusedError(
            "ROLE_IS_READ_ONLY", f"{root} is a mirror, which is only read: its sync owns the files"
        )
    return role


def local_path(root: str | Path) -> Path | None:
    """Return a root's path on this machine's disks, None if elsewhere, and of a tier.

    Args:
        root: A path, or a URL; Hadoop writes those of files with one slash, ``file:/var/kafka``.
    """
    path = root if isinstance(root, Path) else local_name(root)
    return None if path is None else Path(path)


def local_name(root: str) -> str | None:
    """Return ``local_path`` as text, for who asks of very many."""
    if TIER_LOCATION.match(root):
        return None
    if not ("://" in root or root.startswith("file:/")):
        return root
    parts = urlsplit(root)
    return unquote(parts.path) if parts.scheme == "file" else None


def _has_object(url: str, key: str) -> bool:
    from storage_core.store import open_object_store  # noqa: PLC0415  # NumPy, not for --help

    try:
        open_object_store(url).head(key)
    except ObjectNotFoundError:
        return False
    return True


# The off switch: a file of the owner against this program's changes. The file's name is no
# segment's and no checkpoint's: a broker does not notice it.
