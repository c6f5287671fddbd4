"""Opens the object store behind a URL or path."""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from storage_core.errors import ConfigError, MissingDriverError, StorageError
from storage_core.redaction import has_password
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.object_store import ObjectStore

# Prefix of the URL or path of a managed root, or of its partitions.
MANAGED_PREFIX: Final = "managed+"
_FILE_SCHEME: Final = "file://"


def _open_s3(url: str) -> ObjectStore:
    from storage_core.store.s3_objects import S3ObjectStore  # noqa: PLC0415  # of an extra

    return S3ObjectStore(url)


def _open_by_fsspec(url: str) -> ObjectStore:
    from storage_core.store.fsspec_objects import FsspecObjectStore  # noqa: PLC0415  # of an extra

    return FsspecObjectStore(url)


# Openers by scheme; fsspec has all other schemes.
OPENERS: Final[dict[str, Callable[[str], ObjectStore]]] = {"s3": _open_s3, "s3a": _open_s3}


def is_url(location: str) -> bool:
    """Tell whether a location is on an object store. A path or a ``file://`` URL is not on one."""
    return "://" in location and not location.startswith(_FILE_SCHEME)


def names_manifest(location: str) -> bool:
    """Tell by its prefix whether a location names a managed root. A partition of a managed root
    counts, too."""
    return location.startswith(MANAGED_PREFIX)


def name_root(location: str, *, has_manifests: bool) -> str:
    """Return a root's name for commands; managed ones get a prefix. Commands can open the root
    again by that name."""
    return MANAGED_PREFIX + location if has_manifests else location


def local_path(location: str) -> Path:
    """Return the local path of a path or ``file://`` URL."""
    if location.startswith(_FILE_SCHEME):
        return Path(unquote(urlsplit(location).path))
    return Path(location)


def open_object_store(url: str) -> ObjectStore:
    """Open the objects below a URL or a local folder, without requests.

    Args:
        url: ``s3://bucket/prefix``, any other URL of fsspec's, or a path; a managed root's prefix
            is left out.
    """
    url = url.removeprefix(MANAGED_PREFIX)
    if not is_url(url):
        return LocalObjectStore(local_path(url))
    if has_password(url):
        reason = (
            "a URL with a password gets into rows, ledgers and manifests; give the password to the "
            "driver: FSSPEC_<SCHEME>_PASSWORD in the environment, or its own configuration"
        )
        raise ConfigError("location", url, reason)
    open_it = OPENERS.get(url.partition("://")[0], _open_by_fsspec)
    try:
        return open_it(url)
    except ImportError as error:
        if error.name is None and open_it is _open_by_fsspec:
            # fsspec's own text: it names the package for this kind of URL.
            raise ConfigError("location", url, str(error)) from error
        raise MissingDriverError(url, error.name or "s3fs", "s3") from error
    except ValueError as error:
        raise ConfigError("location", url, f"expected a URL that fsspec knows: {error}") from error
    except OSError as error:
        raise StorageError(url, next(iter(str(error).splitlines()), "cannot be opened")) from error
