"""Layouts of remote storage that are known by their objects' names, and not read.

``docs/formats.md`` says where each is documented. A name that fits none of them says nothing.
"""

import re
from collections.abc import Iterable
from typing import Final

_ID: Final = r"[A-Za-z0-9_-]{22}"
# ``0/<object id>/<topic id>/<partition>/<base offset>_<epoch>_v<version>.<kind>``
_CONFLUENT: Final = re.compile(
    rf"(?:.*/)?0/{_ID}/{_ID}/[0-9]+/[0-9]{{20}}_[0-9]+_v[0-9]+\."
    r"(?:segment|offset-index|timestamp-index|transaction-index|producer-state|epoch-state)"
)
# ``<hash or cluster>/meta/<namespace>/<topic>/<partition>_<revision>/manifest.bin`` and
# ``.../topic_manifest.bin``; segments are ``<hash or cluster>/<namespace>/<topic>/<partition>_
# <revision>/<base offset>-<term>-v1.log.<term>``.
_REDPANDA: Final = re.compile(
    r"(?:.*/)?(?:[0-9a-f]{8}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/"
    r"(?:meta/[^/]+/[^/]+/(?:[0-9]+_[0-9]+/manifest|topic_manifest)\.(?:bin|json)"
    r"|[^/]+/[^/]+/[0-9]+_[0-9]+/[0-9]+-[0-9]+-v[0-9]+\.log(?:\.[0-9]+)?)"
    r"|(?:.*/)?meta/[^/]+/[^/]+/[0-9a-f-]{36}/[0-9]+/topic_manifest\.bin"
)
# ``<hash>/<namespace>/<object id>``; the hash is the id in hexadecimal, from its last digit on.
_AUTOMQ: Final = re.compile(r"(?P<hash>[0-9a-f]{8,16})/[^/]+/(?P<id>0|[1-9][0-9]{0,18})")
# ``<table>/metadata/<segment id>.puffin``
_ICEBERG: Final = re.compile(rf"(?:.*/)?[^/]+/metadata/{_ID}\.puffin")
_WARPSTREAM: Final = "warpstream/"


def find_layout(keys: Iterable[str]) -> tuple[str, str] | None:
    """Return the product that wrote some objects, and the name of one that tells it; None if
    nobody known.

    Args:
        keys: Of the objects below a place, or of the first of them.
    """
    several = tuple(keys)
    for key in several:
        for product, layout in (
            ("Confluent", _CONFLUENT),
            ("Redpanda", _REDPANDA),
            ("Aiven's plugin, as Iceberg tables", _ICEBERG),
        ):
            if layout.fullmatch(key):
                return product, key
        match = _AUTOMQ.fullmatch(key)
        if match is not None and f"{int(match['id']):08x}"[::-1] == match["hash"]:
            return "AutoMQ", key
    if several and all(key.startswith(_WARPSTREAM) for key in several):
        return "WarpStream", several[0]
    return None
