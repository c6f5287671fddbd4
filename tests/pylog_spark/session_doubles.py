"""Sessions that say less of themselves than one of this machine."""

from typing import Any

from pyspark.errors import AnalysisException


class RefusingConf:
    """Answers for the keys that it knows and refuses all others, as a serverless session does."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known

    def get(self, key: str, _default: object = None) -> str:
        if key not in self._known:
            raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available.")
        return self._known[key]


class TellingConf:
    """Answers for the keys that it knows, and with the default for all others."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._known.get(key, default)


class ServerlessSession:
    """A session of Spark Connect that refuses to be asked for settings; all else is another's.

    Args:
        real: The session that does the work.
        conf: Its settings, as it tells them.
    """

    def __init__(self, real: Any, conf: RefusingConf | TellingConf) -> None:
        self._real = real
        self.conf = conf

    @property
    def sparkContext(self) -> Any:  # noqa: N802  # Spark's name
        raise AttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] sparkContext")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


# That is how it is told from others.
ServerlessSession.__module__ = "pyspark.sql.connect.session"
