"""Where the files of a partition live, behind one small protocol."""

from storage_core.store.base import FileInfo, FileReader, LogStore
from storage_core.store.local import LocalStore

__all__ = ["FileInfo", "FileReader", "LocalStore", "LogStore"]
