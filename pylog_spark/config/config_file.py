"""A YAML file with the options of jobs: ``conf/defaults.yaml``, or the one behind ``--config``.

pydantic checks the outer shape, here and nowhere else: a key that nobody knows is an error that
names the nearest known one. Kafka's settings inside are texts, checked by ``storage_core.config``.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from storage_core.config.keys import unknown_key
from storage_core.config.values import render
from storage_core.errors import ConfigError

# Far above any catalogue that a person or a tool writes; bounds what a wrong path may cost.
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024


class ConfigFile(BaseModel):
    """What a file may say; None where it says nothing.

    Attributes:
        role: As ``--role``.
        include: As ``--topics``.
        exclude: As ``--exclude``.
        assume_defaults: As ``--assume-defaults``.
        high_watermark: As ``--high-watermark``.
        ledger: As ``--ledger``.
        mark_clean: False is ``--no-mark-clean``.
        master: As ``--master``.
        max_bytes: As ``--max-bytes``.
        max_duration: As ``--max-duration``.
        min_free: As ``--min-free``.
        max_delete_ratio: As ``--max-delete-ratio``.
        order: As ``--order``.
        per_disk: As ``--per-disk``.
        trash: As ``--trash``.
        purge_after: As ``--older-than`` of ``pylog purge``.
        server_properties: As ``--server-properties``, relative to the file.
        settings: As ``--set``.
        topic_dump: As ``--topic-dump``, relative to the file.
        topic_dump_max_age: Age of that export from which on it is warned of.
        topics: Settings of topics, by name or glob.
        spark: Settings of the Spark session.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["broker", "mirror", "managed"] | None = None
    include: list[str] | None = None
    exclude: list[str] | None = None
    assume_defaults: list[str] | None = None
    high_watermark: Literal["checkpoint", "log-end"] | None = None
    ledger: str | None = None
    mark_clean: bool | None = None
    master: str | None = None
    max_bytes: str | None = None
    max_duration: str | None = None
    min_free: str | None = None
    max_delete_ratio: str | None = None
    order: Literal["urgency", "largest", "smallest", "name"] | None = None
    per_disk: int | None = None
    trash: str | None = None
    purge_after: str | None = None
    server_properties: str | None = None
    settings: dict[str, str] | None = None
    topic_dump: str | None = None
    topic_dump_max_age: str | None = None
    topics: dict[str, dict[str, str]] | None = None
    spark: dict[str, str] | None = None

    @field_validator("settings", "spark", mode="before")
    @classmethod
    def _read_texts(cls, value: object) -> object:
        return _texts(value)

    @field_validator(
        *("max_bytes", "max_duration", "min_free", "max_delete_ratio"),
        *("purge_after", "topic_dump_max_age"),
        mode="before",
    )
    @classmethod
    def _read_amount(cls, value: object) -> object:
        return _text(value)

    @field_validator("topics", mode="before")
    @classmethod
    def _read_topics(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {topic: _texts({} if of is None else of) for topic, of in value.items()}


def read_config_file(path: Path) -> ConfigFile:
    """Read a file of job options.

    Raises:
        ConfigError: It cannot be read, is no YAML, or says what no file may say.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("--config", path, error.strerror or str(error)) from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError("--config", path, f"is larger than {_MAX_FILE_BYTES} bytes")
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506  # a SafeLoader underneath
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("--config", path, f"is no YAML: {_one_line(error)}") from error
    if document is None:
        return ConfigFile()
    if not isinstance(document, dict):
        raise ConfigError("--config", path, "expected a mapping of option names to values")
    try:
        return ConfigFile.model_validate(document)
    except ValidationError as error:
        raise _as_config_error(path, error) from error


def _texts(value: object) -> object:
    """Turn YAML's scalars into the texts that Kafka's own parsers take."""
    if not isinstance(value, Mapping):
        return value
    return {key: _text(item) for key, item in value.items()}


def _text(value: object) -> object:
    if isinstance(value, list):
        return ",".join(str(_text(item)) for item in value)
    return render(value) if isinstance(value, bool | int | float) else value


def _as_config_error(path: Path, error: ValidationError) -> ConfigError:
    """Return the first complaint as an error that names file, key and what was expected."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        unknown = unknown_key(place, _shortened(first["input"]), list(ConfigFile.model_fields))
        return ConfigError(f"{path}: {unknown.key}", unknown.value, unknown.reason)
    reason = str(first["msg"])
    return ConfigError(
        f"{path}: {place}", _shortened(first["input"]), reason[0].lower() + reason[1:]
    )


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004  # fits a line


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Loader(yaml.SafeLoader):
    """YAML without surprises: a key that stands twice is an error, not a silent loss."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  # PyYAML's signature
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key_node.value!r} stands twice",
                        problem_mark=key_node.start_mark,
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)
