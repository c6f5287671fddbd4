"""A read-only copy of a log directory on an object store."""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from storage_core.errors import GuardRefusedError, ObjectNotFoundError
from storage_core.roots.purge import PurgeRequest
from storage_core.roots.root import HeldRoot
from storage_core.store import ObjectStore
from storage_core.store.open_store import join_location


@dataclass(frozen=True, slots=True)
class MirrorRoot:
    """A copy of a log directory on an object store."""

    store: ObjectStore

    @property
    def location(self) -> str:
        """Its URL."""
        return self.store.url

    @property
    def has_manifests(self) -> bool:
        """Whether its partitions have manifests: they do not."""
        return False

    @property
    def has_requests(self) -> bool:
        """Whether looks are requests to a store: they are."""
        return True

    def directories(self) -> list[str]:
        """Return the names of its folders, sorted."""
        return sorted(self.store.list_folders())

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return a small object, None if it is not there."""
        try:
            return self.store.get(name, limit_bytes=limit_bytes)
        except ObjectNotFoundError:
            return None

    def locate(self, directory: str) -> str:
        """Return the URL of a folder."""
        return join_location(self.location, directory)

    def newest_write_ms(self) -> int:
        """Return 0: times of copied objects say nothing of our clock."""
        return 0

    def purge_of(self, request: PurgeRequest, held: HeldRoot | None) -> NoReturn:
        """Refuse as ``hold``: its sync owns what was put aside, too."""
        del request, held
        self._refuse()

    def hold(
        self, *, run_id: str, mark_clean: bool, is_alone: bool = True, trash: Path | None = None
    ) -> HeldRoot:
        """Refuse: somebody else's sync owns its objects."""
        del run_id, mark_clean, is_alone, trash
        self._refuse()

    def _refuse(self) -> NoReturn:
        why = f"{self.location} is a mirror, which is only read: its sync owns the files"
        raise GuardRefusedError("ROLE_IS_READ_ONLY", why)
