"""Read a run's options from files and command lines, with origins.

The weakest layer first: ``conf/defaults.yaml``, the file of the place, each ``--config`` file in
the order given, a broker's ``server.properties`` (for broker-wide keys), flags and ``--set``. Lists
and mappings are replaced as a whole by a stronger layer, but for ``settings``, ``topics`` and
``spark``, whose entries are replaced one by one.
"""

import logging
import reprlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import yaml
from pydantic import BeforeValidator, ConfigDict, ValidationError, create_model

from pylog_spark.options.declared import (
    CONFIG_FILES,
    DRY_RUN,
    EXACT,
    KEY_SIDECARS,
    LEDGER,
    NOW_MS,
    OPTIONS,
    RECOMPRESS,
    RECOMPRESS_ALL,
    ROLE,
    ROOTS,
    SERVER_PROPERTIES,
    SETTINGS_OF_RUN,
    STARTED_RELEASE,
    TRASH,
)
from pylog_spark.options.of_partitions import WHOLE_CONFIG
from pylog_spark.options.option import CommandLine, Option, Shape, options_of
from pylog_spark.options.values import (
    TUNING_KEYS,
    ConfigEntry,
    JobConfig,
    JobOptions,
    RunLimits,
    Tuning,
)
from storage_core.config import (
    NEWEST_RELEASE,
    BrokerConfig,
    CleanerConfig,
    ConfigKey,
    LogConfig,
    Origin,
    ServerProperties,
    classify_settings,
    effective_settings,
    known_keys,
    merge_broker_layers,
    newest_release_of,
    parse_server_properties,
    refused_file_settings,
    split_settings,
    without_unknown_keys,
)
from storage_core.config.broker_config import BROKER_KEYS
from storage_core.config.log_config import TOPIC_KEY_OF_BROKER_KEY
from storage_core.config.settings import CLEANER_KEYS
from storage_core.config.values import parse_settings, render, unknown_key
from storage_core.errors import CheckpointError, ConfigError
from storage_core.json_values import MAX_NUMBER_DIGITS
from storage_core.redaction import is_secret_name
from storage_core.wording import time_text

# The effective settings of the broker: its file and the run's.


def broker_config(options: JobOptions) -> BrokerConfig:
    """Return the broker's settings."""
    settings = merge_broker_layers(options.broker_settings, options.broker_overrides)
    return BrokerConfig.from_settings(
        {name: text for name, text in settings.items() if name in BROKER_KEYS},
        release=options.release,
    )


def options_of_release(options: JobOptions, release: str) -> JobOptions:
    """Return the options with a release's limits and keys."""
    options = replace(
        options,
        release=release,
        broker_settings=without_unknown_keys(options.broker_settings, release),
    )
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    LogConfig.from_topic_overrides(options.topic_settings, broker=broker, release=release)
    return options


# ``--set KEY=VALUE``, and the options that are short for one.


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts; the last value of a key wins."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError("--set", text, "expected KEY=VALUE")
        settings[key.strip()] = value
    return settings


def settings_of(line: CommandLine, option: Option[tuple[str, ...]]) -> dict[str, str]:
    """Return the settings of ``--set`` and its short options; these win."""
    settings = parse_assignments(line[option])
    codec = line[RECOMPRESS]
    if codec is not None:
        settings["recompress"] = codec
    if RECOMPRESS_ALL in line:
        settings["recompress.all"] = render(line[RECOMPRESS_ALL])
    folder = line[KEY_SIDECARS]
    if folder is not None:
        settings["key.sidecars"] = folder
    return settings


def whole_config(line: CommandLine) -> tuple[LogConfig, CleanerConfig]:
    """Return a partition directory's config, all from the command line."""
    topic, cleaner = split_settings(settings_of(line, WHOLE_CONFIG))
    return LogConfig.from_topic_overrides(topic), CleanerConfig.from_settings(cleaner)


# Values with their origins, one layer over the other.

T = TypeVar("T")

DEFAULT_ORIGIN: Final = "default"
_FLAG: Final = "--"
_NAMES: Final = {option.flag: option.name for option in OPTIONS if option.flag is not None}


@dataclass(slots=True)
class Layers:
    """Values by name, each with its origin; the last one wins. A mapping whose entries win one
    by one is kept as ``<its name>.<key of the entry>``."""

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def put(self, name: str, value: object, origin: str) -> None:
        """Put a value over what is there; None says nothing."""
        if value is not None:
            self.values[name] = (value, origin)

    def put_entries(self, name: str, entries: Mapping[str, object] | None, origin: str) -> None:
        """Put the entries of a mapping over those that are there."""
        for key, value in (entries or {}).items():
            self.put(f"{name}.{key}", value, origin)

    def value(self, option: Option[T]) -> T:
        """Return an option's value, or its default without a value."""
        if option.kind.is_mapping:
            return option.read(self.entries(option.name))
        return option.read(self.get(option.name))

    def get(self, name: str) -> Any:
        """Return a value, None where no layer says one."""
        value, _ = self.values.get(name, (None, ""))
        return value

    def origin(self, name: str) -> str:
        """Return where a value comes from."""
        return self.values[name][1] if name in self.values else DEFAULT_ORIGIN

    def entries(self, name: str) -> dict[str, Any]:
        """Return the entries of a mapping."""
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value
            for key, (value, _) in self.values.items()
            if key.startswith(prefix)
        }

    def with_file(self, error: ConfigError) -> ConfigError:
        """Return a setting's error with the file of its value. An error about a flag is returned
        unchanged."""
        name = self._name_of(error.key)
        origin = self.origin(name)
        if name not in self.values or origin.startswith(_FLAG):
            return error
        key = name if error.key.startswith(_FLAG) else error.key
        return ConfigError(f"{origin}: {key}", error.value, error.reason)

    def _name_of(self, key: str) -> str:
        """Return this layer's name for an error's key, else the key."""
        if key.startswith(_FLAG):
            return _NAMES.get(key, key)
        named = [name for name in self.values if key.startswith(f"{name}.")]
        named += [name for name in (f"settings.{key}", f"broker.{key}") if name in self.values]
        return max(named, key=len, default=key)


# A YAML file with job options: ``conf/defaults.yaml``, or ``--config``.
#
# pydantic checks the outer shape, here and nowhere else: a key that nobody knows is an error that
# names the nearest known one. Kafka's settings inside are texts, checked by
# ``storage_core.config``.

# Far above any real catalogue; it bounds the cost of a wrong path.
_MAX_FILE_BYTES: Final = 64 * 1024 * 1024
# Of all values of a file, with each repetition by an alias: the settings of 200,000 topics.
_MAX_NODES: Final = 4_000_000
_MAX_DEPTH: Final = 32
_TEXT_TAG: Final = "tag:yaml.org,2002:str"


def _texts(value: object) -> object:
    """Turn YAML's scalars into the texts that Kafka's own parsers take."""
    if not isinstance(value, Mapping):
        return value
    return {key: _text(item) for key, item in value.items()}


def _text(value: object) -> object:
    if isinstance(value, list):
        return ",".join(str(_text(item)) for item in value)
    return render(value) if isinstance(value, bool | int | float) else value


def _texts_by_name(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: _texts({} if texts is None else texts) for name, texts in value.items()}


def _type_of(option: Option[Any]) -> Any:
    """Return the type of an option's values in a file. A value of None in the file leaves the
    option unset."""
    kind = option.kind.in_file | None
    match option.kind.shape:
        case Shape.AMOUNT:
            kind = Annotated[kind, BeforeValidator(_text)]
        case Shape.ENTRIES:
            kind = Annotated[kind, BeforeValidator(_texts)]
        case Shape.ENTRIES_BY_NAME:
            kind = Annotated[kind, BeforeValidator(_texts_by_name)]
    return kind


_FIELDS: Final[dict[str, Any]] = {
    option.name: (_type_of(option), None) for option in OPTIONS if option.is_in_files
}
_Model: Final = create_model(
    "ConfigFile", __config__=ConfigDict(extra="forbid", strict=True, frozen=True), **_FIELDS
)


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a file of job options.

    Returns:
        What it says, by the option's name.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("--config", path, error.strerror or str(error)) from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError("--config", path, f"is larger than {_MAX_FILE_BYTES} bytes")
    document, _ = load_yaml("--config", path, content)
    try:
        options: dict[str, Any] = _Model.model_validate(document).model_dump(exclude_none=True)
    except ValidationError as error:
        raise _as_config_error(path, error) from error
    return options


def load_yaml(label: str, path: Path, content: bytes) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a file's mapping, and the line of each key that is a text.

    Args:
        label: What an error calls the option that names the file.
    """
    try:
        loader = _Loader(content)
        node = loader.get_single_node()
        document = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(label, path, f"is no YAML: {_reason(error)}") from error
    if document is None:
        return {}, {}
    if not isinstance(document, dict) or not isinstance(node, yaml.MappingNode):
        raise ConfigError(label, path, "expected a mapping of option names to values")
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
    return document, lines


def _as_config_error(path: Path, error: ValidationError) -> ConfigError:
    """Return the first complaint as an error with file, key and expectation."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        unknown = unknown_key(place, _shortened(first["input"]), list(_Model.model_fields))
        return ConfigError(f"{path}: {unknown.key}", unknown.value, unknown.reason)
    reason = str(first["msg"])
    return ConfigError(
        f"{path}: {place}", _shortened(first["input"]), reason[0].lower() + reason[1:]
    )


def _shortened(value: object) -> str:
    text = value if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004  # fits a line


def _reason(error: Exception) -> str:
    """Return what is wrong, with its place, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


class _Loader(yaml.SafeLoader):
    """YAML without surprises: bounded, and without repeated keys. A key that stands twice is an
    error, not a silent loss.

    Aliases are taken, but what they repeat counts each time, in size and in depth: some lines of
    them stand for more than any memory holds, or for what contains itself.
    """

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._level = 0
        # By node (its key keeps the node alive): the number of nodes it stands for, and of levels.
        self._extents: dict[yaml.Node, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._level >= _MAX_DEPTH:
            raise _complaint(f"is nested more than {_MAX_DEPTH} levels deep", mark)
        is_alias = self.check_event(yaml.AliasEvent)
        self._level += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._level -= 1
        if node is not None and not is_alias:
            self._extents[node] = self._extent(node, mark)
        elif node is not None and node not in self._extents:
            raise _complaint("an alias stands within what it is an alias of", mark)
        return node

    def _extent(self, node: yaml.Node, mark: yaml.Mark) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            if node.tag != _TEXT_TAG and len(node.value) > MAX_NUMBER_DIGITS:
                raise _complaint(f"a number or a time of {len(node.value)} characters", mark)
            return 1, 1
        inner = node.value
        if isinstance(node, yaml.MappingNode):
            inner = [part for pair in node.value for part in pair]
        extents = [self._extents[part] for part in inner]
        nodes = 1 + sum(count for count, _ in extents)
        levels = 1 + max((depth for _, depth in extents), default=0)
        if nodes > _MAX_NODES:
            raise _complaint(f"stands for more than {_MAX_NODES} values, with its aliases", mark)
        if levels > _MAX_DEPTH:
            raise _complaint(f"is nested more than {_MAX_DEPTH} levels deep by its aliases", mark)
        return nodes, levels

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # PyYAML's signature
        try:
            return super().construct_object(node, deep)
        # PyYAML lets Python reject values such as !!int x or a thirteenth month.
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            shown = f", found {_shortened(node.value)}" if isinstance(node.value, str) else ""
            raise _complaint(f"expected a YAML {kind}{shown}", node.start_mark) from error

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  # PyYAML's signature
        names = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in names:
                    raise _complaint(
                        f"the key {_shortened(key_node.value)!r} stands twice", key_node.start_mark
                    )
                names.add(key_node.value)
        return super().construct_mapping(node, deep)  # type: ignore[arg-type]  # refuses the others


def _complaint(problem: str, mark: yaml.Mark) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=mark)


_log: Final = logging.getLogger(__name__)

DEFAULTS_FILE: Final = "defaults.yaml"
_MAX_PROPERTIES_BYTES: Final = 16 * 1024 * 1024
_HIDDEN: Final = "(hidden)"
# A broker's file sizes the offset map for the broker's heap; here the user sets a bound explicitly.
_NOT_FROM_BROKER: Final = frozenset(
    {
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.threads",
        "log.cleaner.io.buffer.size",
    }
)


def load_config(line: CommandLine, *, now_ms: int, release: str | None = None) -> JobConfig:
    """Build the options of a run.

    Args:
        now_ms: The machine's clock, epoch milliseconds; a clock that the command line says wins.
        release: The release of Kafka that is to start, one of ``OTHER_TYPES``; None for the newest
            one that takes the broker's file.
    """
    layers = Layers()
    layers.put(NOW_MS.name, now_ms, DEFAULT_ORIGIN)
    # A zip of the packages for --py-files has no conf/; the code has the same defaults.
    defaults = [path for path in (defaults_file(),) if path.exists()]
    for path in defaults:
        _put_file(layers, read_config_file(path), path)
    place = line.place
    if place is not None:
        for option in (ROLE, LEDGER, TRASH):
            layers.put(option.name, place.values.get(option.name), place.file)
    for path in line[CONFIG_FILES]:
        _put_file(layers, read_config_file(path), path)
    _put_command_line(layers, line)
    if line[EXACT] and not line[DRY_RUN]:
        # Half of an option must not become a real run.
        raise ConfigError(EXACT.label, None, "expected --dry-run=exact")
    try:
        broker_release = _put_server_properties(layers, release)
        options = _options(layers, now_is_said=NOW_MS in line)
        options = options_of_release(options, broker_release)
        _validate_topics(options)
    except ConfigError as error:
        raise layers.with_file(error) from error
    entries = (*_place_entries(line), *list_entries(layers, options))
    return JobConfig(options=options, entries=entries)


def _place_entries(line: CommandLine) -> Iterator[ConfigEntry]:
    """Yield what the place says of what no other file may say."""
    for key, option in (("roots", ROOTS), ("config", CONFIG_FILES)):
        if line.place is not None and option not in line and option.name in line.place.values:
            text = ", ".join(map(str, line.place.values[option.name]))
            yield ConfigEntry(key=key, value=text, origin=line.place.file, doc=option.help)


def _options(layers: Layers, *, now_is_said: bool) -> JobOptions:
    broker = layers.entries("broker")
    settings = layers.entries(SETTINGS_OF_RUN.name)
    tuning = {name: text for name, text in settings.items() if name in TUNING_KEYS}
    kafka = {name: text for name, text in settings.items() if name not in TUNING_KEYS}
    # Unknown keys are refused early; this layer knows its own keys, too.
    names = [*known_keys(), *TOPIC_KEY_OF_BROKER_KEY, *TUNING_KEYS]
    for name, text in kafka.items():
        if name not in names:
            raise unknown_key(name, text, names)
    groups = classify_settings(kafka)
    tuning_values: dict[str, Any] = parse_settings(tuning, TUNING_KEYS)
    return JobOptions(
        **_values_of(JobOptions, layers),
        now_is_said=now_is_said,
        topic_settings=groups.topic,
        broker_settings={n: text for n, text in broker.items() if n not in CLEANER_KEYS},
        broker_overrides={**groups.topic_defaults, **groups.broker},
        cleaner=CleanerConfig.from_settings(
            {n: text for n, text in broker.items() if n in CLEANER_KEYS} | groups.cleaner
        ),
        tuning=Tuning(**tuning_values),
        limits=RunLimits(**_values_of(RunLimits, layers)),
    )


def _values_of(values: type, layers: Layers) -> dict[str, Any]:
    """Return the values of the options that a dataclass holds, by field."""
    return {field: layers.value(option) for field, option in options_of(values).items()}


def defaults_file() -> Path:
    """Return where ``conf/defaults.yaml`` lies: in the installed package, or in the checkout."""
    package = Path(__file__).parent.parent
    installed = package / "conf" / DEFAULTS_FILE
    return installed if installed.exists() else package.parent / "conf" / DEFAULTS_FILE


def _put_file(layers: Layers, file: Mapping[str, Any], path: Path) -> None:
    origin = path.name if path == defaults_file() else str(path)
    for option in OPTIONS:
        value = file.get(option.name)
        if option.kind.is_mapping:
            layers.put_entries(option.name, value, origin)
        elif option.kind.written is Path and value is not None:
            layers.put(option.name, path.parent / value, origin)
        else:
            layers.put(option.name, value, origin)


def _put_command_line(layers: Layers, line: CommandLine) -> None:
    for option in OPTIONS:
        if option.flag is not None and not option.kind.is_mapping:
            layers.put(option.name, line.written(option), option.flag)
    settings = settings_of(line, SETTINGS_OF_RUN)
    layers.put_entries(SETTINGS_OF_RUN.name, settings, SETTINGS_OF_RUN.label)


def _put_server_properties(layers: Layers, named: str | None) -> str:
    """Take over a broker's file; return the release whose limits count.

    Args:
        named: The release that is to start, None where nobody said it.
    """
    broker_file = layers.value(SERVER_PROPERTIES)
    if broker_file is None:
        return named or NEWEST_RELEASE
    properties = _read_server_properties(broker_file)
    if properties.unknown_keys:
        # Only names: other settings in a broker's file may be secrets.
        unknown = ", ".join(properties.unknown_keys)
        _log.warning("%s: keys that mean nothing here: %s", broker_file, unknown)
    counting = {
        name: text for name, text in properties.settings.items() if name not in _NOT_FROM_BROKER
    }
    layers.put_entries("broker", counting, str(broker_file))
    release = named or newest_release_of(counting)
    refused = next(refused_file_settings(counting, named or NEWEST_RELEASE), None)
    if refused is not None and named is not None:
        reason = f"{refused.reason} in Kafka {named}; {STARTED_RELEASE.label} names another release"
        raise ConfigError(refused.key, refused.value, reason)
    if release != NEWEST_RELEASE:
        text = "%s: Kafka %s refuses %s; going by the limits of Kafka %s"
        _log.warning(text, broker_file, NEWEST_RELEASE, refused, release)
    return release


def _read_server_properties(path: Path) -> ServerProperties:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_PROPERTIES_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(SERVER_PROPERTIES.label, path, reason) from error
    if len(data) > _MAX_PROPERTIES_BYTES:
        reason = f"is larger than {_MAX_PROPERTIES_BYTES} bytes"
        raise ConfigError(SERVER_PROPERTIES.label, path, reason)
    try:
        return parse_server_properties(data, file=str(path))
    except CheckpointError as error:
        raise ConfigError(SERVER_PROPERTIES.label, path, str(error)) from error


def _validate_topics(options: JobOptions) -> None:
    """Refuse a topic's bad setting before looking at any directory."""
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    for topic, settings in options.topic_configs.items():
        try:
            LogConfig.from_topic_overrides(
                {**settings, **options.topic_settings}, broker=broker, release=options.release
            )
        except ConfigError as error:
            raise ConfigError(f"topics.{topic}.{error.key}", error.value, error.reason) from error


def list_entries(layers: Layers, options: JobOptions) -> Iterator[ConfigEntry]:
    """Yield the entries of a job's config, in their order.

    The order is: the job's own options, its keys, the cleaner's and a topic's keys, topics, Spark.

    Args:
        layers: Where values come from: options by name, ``settings.<key>``, ``broker.<key>``,
            ``topics.<name>`` and ``spark.<key>``.
    """
    for option in OPTIONS:
        if option.is_in_files and not option.kind.is_mapping:
            name, value = option.name, layers.get(option.name)
            text = ", ".join(value) if isinstance(value, list | tuple) else render(value)
            yield ConfigEntry(key=name, value=text, origin=layers.origin(name), doc=option.help)
    for keys, values in ((TUNING_KEYS, options.tuning), (CLEANER_KEYS, options.cleaner)):
        for name in sorted(keys):
            yield _entry(keys[name], getattr(values, keys[name].attribute), _origin(layers, name))
    yield from _topic_entries(layers, options)
    dump = options.topic_dump
    if dump is not None:
        origin = f"{dump.file}, exported {time_text(dump.taken_ms)}"
        for topic, settings in sorted(dump.topics.items()):
            text = ", ".join(f"{key}={value}" for key, value in settings.items())
            yield ConfigEntry(key=f"topic_dump.{topic}", value=text, origin=origin)
    for topic, settings in sorted(layers.entries("topics").items()):
        text = ", ".join(f"{key}={value}" for key, value in settings.items())
        yield ConfigEntry(
            key=f"topics.{topic}", value=text, origin=layers.origin(f"topics.{topic}")
        )
    for key, text in sorted(layers.entries("spark").items()):
        shown = _HIDDEN if is_secret_name(key) else text
        yield ConfigEntry(key=f"spark: {key}", value=shown, origin=layers.origin(f"spark.{key}"))


def _topic_entries(layers: Layers, options: JobOptions) -> Iterator[ConfigEntry]:
    broker = merge_broker_layers(options.broker_settings, options.broker_overrides)
    for setting in effective_settings(
        options.topic_settings, broker=broker, release=options.release
    ):
        origin = _origin(layers, setting.source_key)
        if setting.origin is Origin.BROKER:
            origin = f"{origin} ({setting.source_key})"
        elif setting.origin is Origin.DEFAULT:
            origin = DEFAULT_ORIGIN
        yield _entry(known_keys()[setting.key], setting.value, origin)


def _entry(key: ConfigKey, value: object, origin: str) -> ConfigEntry:
    text = value if isinstance(value, str) else render(value)
    return ConfigEntry(key=key.name, value=text, origin=origin, unit=key.unit, doc=key.doc)


def _origin(layers: Layers, key: str) -> str:
    name = f"settings.{key}"
    return layers.origin(name if name in layers.values else f"broker.{key}")
