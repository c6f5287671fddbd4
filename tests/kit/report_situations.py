"""Log directories in states that people reported; brokers of Kafka 4.4 wrote them."""

import tarfile
from pathlib import Path
from typing import Final

_REPORTS: Final = Path(__file__).parents[1] / "golden" / "reports"
# A day after the newest records.
NOW_MS: Final = 1_795_908_600_000


def unpack(name: str, folder: Path) -> list[Path]:
    """Unpack a situation into a folder; return its log directories."""
    with tarfile.open(_REPORTS / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.glob("d[0-9]"))
