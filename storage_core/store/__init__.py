"""Where the files of a partition live, behind one small protocol."""

from storage_core.store.base import FileInfo, FileReader, LogStore, one_look
from storage_core.store.local import LocalStore
from storage_core.store.managed_store import ManagedStore
from storage_core.store.object_files import ObjectDirectory
from storage_core.store.object_store import ObjectInfo, ObjectStore
from storage_core.store.open_objects import open_object_store
from storage_core.store.open_store import open_store

__all__ = [
    "FileInfo",
    "FileReader",
    "LocalStore",
    "LogStore",
    "ManagedStore",
    "ObjectDirectory",
    "ObjectInfo",
    "ObjectStore",
    "one_look",
    "open_object_store",
    "open_store",
]
