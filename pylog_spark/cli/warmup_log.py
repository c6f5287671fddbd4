"""A log of three segments and fourteen records, small enough for code.

It has what makes compaction take each of its ways: messages of the formats before v2, keys, a
record without one, headers, tombstones, an aborted and a committed transaction. Built by
``tests/pylog_spark/cli/warmup_sample.py``, whose test holds the two together.
"""

from base64 import b64decode
from pathlib import Path
from typing import Final

_FILES: Final = {
    "00000000000000000000.index": "AAAAAgAAABwAAAAFAAAAiQAAAAcAAADnAAAACAAAATY=",
    "00000000000000000000.log": (
        "AAAAAAAAAAAAAAAQIcgQyQAAAAAAAWEAAAABMAAAAAAAAAACAAAAYSp2s1cBAgAAAYvP5WgA/////wAAAEuCU0"
        "5BUFBZAAAAAAEAAAABAAAAN0YAABkBNBelwnWUAQAAAAGLz+VoARgEAWYBBg0BARoQF1BC01QBCTgBi8/laAAA"
        "AAABYgAAAAAAAAAAAAAAAwAAAFIAAAAAAtxmT5wAAAAAAAIAAAGLz+VoAAAAAYvP5WgA//////////////////"
        "8AAAADHgAAAAJhAjEEAmgCeAJuARAAAAICYgIyAA4AAAQBAjMAAAAAAAAAAAYAAABDAAAAAAKDSf0IABAAAAAB"
        "AAABi8/laAAAAAGLz+VoAAAAAAAAAAABAAAAAAAAAAAAAhAAAAACYwI2ABAAAAICYwI3AAAAAAAAAAAIAAAAQg"
        "AAAAAC26H0RAAwAAAAAAAAAYvP5WgAAAABi8/laAAAAAAAAAAAAQAA/////wAAAAEgAAAACAAAAAAMAAAAAAAA"
        "AA=="
    ),
    "00000000000000000000.timeindex": "AAABi8/laAAAAAAC",
    "00000000000000000000.txnindex": "AAAAAAAAAAAAAQAAAAAAAAAGAAAAAAAAAAgAAAAAAAAACQ==",
    "00000000000000000009.index": "AAAAAgAAAE8AAAAEAAAAnQ==",
    "00000000000000000009.log": (
        "AAAAAAAAAAkAAABDAAAAAALj0AyJABAAAAABAAABi8/laAAAAAGLz+VoAAAAAAAAAAABAAAAAAACAAAAAhAAAA"
        "ACZAI2ABAAAAICZAI3AAAAAAAAAAALAAAAQgAAAAACL58iDAAwAAAAAAAAAYvP5WgAAAABi8/laAAAAAAAAAAA"
        "AQAA/////wAAAAEgAAAACAAAAAEMAAAAAAAAAAAAAAAAAAAMAAAAQgAAAAACRt+pawAAAAAAAQAAAYvP5WgAAA"
        "ABi8/laAD//////////////////wAAAAIOAAAAAmEBABAAAAICZQI0AA=="
    ),
    "00000000000000000009.timeindex": "AAABi8/laAAAAAAB",
    "00000000000000000014.index": "",
    "00000000000000000014.log": (
        "AAAAAAAAAA4AAAA6AAAAAAIJaiobAAAAAAAAAAABi8/laAAAAAGLz+VoAP//////////////////AAAAARAAAA"
        "ACYgI1AA=="
    ),
    "00000000000000000014.timeindex": "AAABi8/laAAAAAAA",
    "leader-epoch-checkpoint": "MAoxCjAgMwo=",
}


def write_sample(directory: Path) -> None:
    """Write the partition into a new directory."""
    directory.mkdir()
    for name, content in _FILES.items():
        (directory / name).write_bytes(b64decode(content))
