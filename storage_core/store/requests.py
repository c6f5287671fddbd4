"""What is asked of S3, counted."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Final

from storage_core.wording import count_text


@dataclass(slots=True)
class Requests:
    """How many requests there were, repetitions not counted."""

    listings: int = 0
    reads: int = 0
    read_bytes: int = 0  # of the objects that were read
    others: int = 0

    def __bool__(self) -> bool:
        return self != Requests()

    def text(self, read_size: str) -> str:
        """Return them as a line.

        Args:
            read_size: Their bytes in words.
        """
        counts = [
            count_text(self.listings, "listing"),
            f"{count_text(self.reads, 'read')} of {read_size}",
            *([count_text(self.others, "other request")] if self.others else []),
        ]
        return f"S3: {', '.join(counts)}"

    def add(self, others: "Requests") -> None:
        """Count others, too."""
        with _adding:
            self.listings += others.listings
            self.reads += others.reads
            self.read_bytes += others.read_bytes
            self.others += others.others

    def copy(self) -> "Requests":
        """Return as many."""
        with _adding:
            return replace(self)

    def since(self, earlier: "Requests") -> "Requests":
        """Return those that an earlier copy does not have."""
        pairs = zip(astuple(self.copy()), astuple(earlier), strict=True)
        return Requests(*(now - before for now, before in pairs))


_adding: Final = threading.Lock()
# Those of this process. The engines add those of the tasks that other processes do for it.
REQUESTS: Final = Requests()

_log: Final = logging.getLogger(__name__)
# Whoever has a handler for it asks for it: by itself no level of a process of Spark's shows it.
_log.setLevel(logging.INFO)


@contextmanager
def logged_requests(what: str) -> Iterator[None]:
    """Log at INFO what a block asks of S3, if it does.

    Args:
        what: Who asks, for the line.
    """
    before = REQUESTS.copy()
    try:
        yield
    finally:
        if asked := REQUESTS.since(before):
            _log.info("%s: %s", what, asked.text(count_text(asked.read_bytes, "byte")))
