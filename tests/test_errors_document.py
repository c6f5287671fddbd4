"""``docs/exit-statuses.md`` has every error with a number of Kafka's, and Kafka's name of it."""

import re
from pathlib import Path

from storage_core.errors import PylogError
from storage_core.formats.error_codes import kafka_error_name

DOCUMENT = Path(__file__).parents[1] / "docs" / "exit-statuses.md"
ROW = re.compile(r"^\| (\d+) \| `([A-Z_]+)` \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)


def test_the_document_has_every_numbered_error():
    expected: dict[tuple[int, str], set[str]] = {}
    known = [PylogError]
    for kind in known:
        known += kind.__subclasses__()
        if kind.kafka_code is not None and kind.__module__ == "storage_core.errors":
            key = (kind.kafka_code, kafka_error_name(kind.kafka_code))
            expected.setdefault(key, set()).add(kind.__name__)
    found = {
        (int(number), name): set(re.findall(r"`(\w+)`", kinds))
        for number, name, kinds in ROW.findall(DOCUMENT.read_text())
    }
    assert found == expected
