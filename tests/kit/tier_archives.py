"""Tiers that real brokers wrote, and what a consumer read of them (``golden/tier/README.md``)."""

import gzip
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.kit.golden_data import GOLDEN, unpack_archive

TIERS: Final = GOLDEN / "tier"
CASES: Final = sorted(path.parent.name for path in TIERS.glob("*/truth.json"))


@dataclass(frozen=True)
class TierCase:
    """One situation, unpacked."""

    name: str
    folder: Path

    @cached_property
    def truth(self) -> dict[str, Any]:
        """What the living brokers said."""
        truth: dict[str, Any] = json.loads((TIERS / self.name / "truth.json").read_text())
        return truth

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """What a consumer read."""
        with gzip.open(TIERS / self.name / "records.jsonl.gz", "rt") as lines:
            return [json.loads(line) for line in lines]

    @property
    def archive(self) -> Path:
        """The tier."""
        return self.folder / str(self.truth["archive"])

    @property
    def key(self) -> Path | None:
        """The private key, where the tier is encrypted."""
        key = self.folder / "private.pem"
        return key if key.exists() else None


def unpack_tier(name: str, folder: Path) -> TierCase:
    """Unpack a situation into a folder."""
    unpack_archive(TIERS / name / "before.tar.gz", folder)
    return TierCase(name, folder)
