"""Names that Kafka gave to nothing: not UTF-8, control characters, what a terminal acts upon."""

import os
from pathlib import Path
from typing import Final

NOT_UTF8: Final = (b"bad\xff-0", b"topic\xe9", b"a\xff-0." + b"0" * 32 + b"-delete")
STEERING: Final = (b"\x1b[31mred\n-0", b"<script>-0", b"[red]-0")
# What a loader would remove, refuse, or take for a segment if the name were UTF-8.
FILES_NOT_UTF8: Final = (
    b"00000000000000000000.\xff.log",
    b"\xff.deleted",
    b"\xff.log",
    b"\xff.swap",
)
STEERING_FILE: Final = b"\x1b]0;title\x07[red]<script>"
# How the first of them is spelled out.
SPELLED_OUT: Final = r"bad\xff-0"


def add_hostile_names(root: Path, partition: str) -> None:
    """Add directories to a log directory, and files to it and to one of its partitions."""
    for name in (*NOT_UTF8, *STEERING):
        (root / os.fsdecode(name)).mkdir()
    for name in (*FILES_NOT_UTF8, STEERING_FILE):
        for folder in (root, root / partition):
            (folder / os.fsdecode(name)).touch()
