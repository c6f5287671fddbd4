"""What a hosted notebook finds when it starts: a session that is there, and its widgets."""

import os
from types import SimpleNamespace

from pylog_spark.session import build_session
from tests.kit.spark_classes import FEW_ROWS
from tests.pylog_spark.session_doubles import RefusingConf, ServerlessSession

REFUSED = {"spark.sql.shuffle.partitions": "auto"}


class Widgets:
    """Text fields, filled in by the environment: ``root`` by ``PYLOG_WIDGET_ROOT``."""

    def __init__(self) -> None:
        self._values = {}

    def text(self, name: str, default: str, label: str) -> None:
        self._values[name] = os.environ.get(f"PYLOG_WIDGET_{name.upper()}", default)

    def get(self, name: str) -> str:
        return self._values[name]


dbutils = SimpleNamespace(widgets=Widgets())
spark = ServerlessSession(build_session("local[2]", FEW_ROWS), RefusingConf(REFUSED))
