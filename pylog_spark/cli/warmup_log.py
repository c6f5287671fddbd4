"""A log of three segments and eleven records, small enough to be carried in the code.

It has what makes compaction take each of its ways: keys, a record without one, headers, tombstones,
an aborted and a committed transaction. Built by ``tests/pylog_spark/cli/warmup_sample.py``, whose
test holds the two together.
"""

from base64 import b64decode
from pathlib import Path
from typing import Final

_FILES: Final = {
    "00000000000000000000.index": "AAAABAAAAF4AAAAFAAAArQ==",
    "00000000000000000000.log": (
        "AAAAAAAAAAAAAABSAAAAAALcZk+cAAAAAAACAAABi8/laAAAAAGLz+VoAP//////////////////AAAAAx4A"
        "AAACYQIxBAJoAngCbgEQAAACAmICMgAOAAAEAQIzAAAAAAAAAAADAAAAQwAAAAACg0n9CAAQAAAAAQAAAYvP"
        "5WgAAAABi8/laAAAAAAAAAAAAQAAAAAAAAAAAAIQAAAAAmMCNgAQAAACAmMCNwAAAAAAAAAABQAAAEIAAAAA"
        "Atuh9EQAMAAAAAAAAAGLz+VoAAAAAYvP5WgAAAAAAAAAAAEAAP////8AAAABIAAAAAgAAAAADAAAAAAAAAA="
    ),
    "00000000000000000000.timeindex": "AAABi8/laAAAAAAC",
    "00000000000000000000.txnindex": "AAAAAAAAAAAAAQAAAAAAAAADAAAAAAAAAAUAAAAAAAAABg==",
    "00000000000000000006.index": "AAAAAgAAAE8AAAAEAAAAnQ==",
    "00000000000000000006.log": (
        "AAAAAAAAAAYAAABDAAAAAALj0AyJABAAAAABAAABi8/laAAAAAGLz+VoAAAAAAAAAAABAAAAAAACAAAAAhAA"
        "AAACZAI2ABAAAAICZAI3AAAAAAAAAAAIAAAAQgAAAAACL58iDAAwAAAAAAAAAYvP5WgAAAABi8/laAAAAAAA"
        "AAAAAQAA/////wAAAAEgAAAACAAAAAEMAAAAAAAAAAAAAAAAAAAJAAAAQgAAAAACRt+pawAAAAAAAQAAAYvP"
        "5WgAAAABi8/laAD//////////////////wAAAAIOAAAAAmEBABAAAAICZQI0AA=="
    ),
    "00000000000000000006.timeindex": "AAABi8/laAAAAAAB",
    "00000000000000000011.index": "",
    "00000000000000000011.log": (
        "AAAAAAAAAAsAAAA6AAAAAAIJaiobAAAAAAAAAAABi8/laAAAAAGLz+VoAP//////////////////AAAAARAA"
        "AAACYgI1AA=="
    ),
    "00000000000000000011.timeindex": "AAABi8/laAAAAAAA",
    "leader-epoch-checkpoint": "MAoxCjAgMAo=",
}


def write_sample(directory: Path) -> None:
    """Write the partition into a new directory."""
    directory.mkdir()
    for name, content in _FILES.items():
        (directory / name).write_bytes(b64decode(content))
