"""Apache Kafka's jars: fetched once for a checkout, or those of a folder that somebody names.

``python -m tests.oracle.jars`` fetches them ahead of the first test that asks Kafka.
"""

import os
import sys
from pathlib import Path
from typing import Final

from pylog_spark.jars import Exclusion, Library, fetch_jars

JARS_VARIABLE: Final = "PYLOG_KAFKA_JARS"
KAFKA: Final = Library(group="org.apache.kafka", artifact="kafka_2.13", version="4.4.0")
# Not published for this version; only command-line tools of Kafka's would need it.
_UNPUBLISHED: Final = Exclusion(group=KAFKA.group, artifact="kafka-tools-api")
_CACHE: Final = Path(__file__).resolve().parents[2] / ".cache"


def kafka_jars() -> list[Path]:
    """Return the jars of Apache Kafka 4.4.0 and of what it needs, by name.

    Those of the folder that ``PYLOG_KAFKA_JARS`` names, else those of the checkout's cache, which
    is filled first where that has not been done.

    Raises:
        JavaNotFoundError: There is no Java to fetch them with.
        JarsUnavailableError: They cannot be fetched.
    """
    said = os.environ.get(JARS_VARIABLE)
    if said:
        return sorted(Path(said).glob("*.jar"))
    return fetch_jars([KAFKA], _CACHE / f"kafka-{KAFKA.version}", exclusions=[_UNPUBLISHED])


if __name__ == "__main__":
    sys.stdout.write(f"{len(kafka_jars())} jars of Apache Kafka {KAFKA.version}\n")
