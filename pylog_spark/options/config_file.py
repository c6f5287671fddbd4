"""A YAML file with job options: ``conf/defaults.yaml``, or ``--config``.

pydantic checks the outer shape, here and nowhere else: a key that nobody knows is an error that
names the nearest known one. Kafka's settings inside are texts, checked by ``storage_core.config``.
"""

import reprlib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BeforeValidator, ConfigDict, ValidationError, create_model

from pylog_spark.options.declared import OPTIONS
from pylog_spark.options.option import Option, Shape
from storage_core.config.keys import unknown_key
from storage_core.config.values import render
from storage_core.errors import ConfigError
from storage_core.json_text import MAX_NUMBER_DIGITS

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
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506  # a SafeLoader underneath
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("--config", path, f"is no YAML: {_reason(error)}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError("--config", path, "expected a mapping of option names to values")
    try:
        options: dict[str, Any] = _Model.model_validate(document).model_dump(exclude_none=True)
    except ValidationError as error:
        raise _as_config_error(path, error) from error
    return options


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
