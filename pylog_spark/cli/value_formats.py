"""How a command line wants keys and values written."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pylog_spark.options.choices import AVRO_FORMATS, BytesFormat
from pylog_spark.options.declared import (
    KEY_FORMAT,
    KEY_SCHEMA,
    LOGICAL_TYPES,
    ON_ERROR,
    READER_MESSAGE,
    READER_SCHEMA,
    ROOTS,
    SCHEMAS,
    VALUE_FORMAT,
    VALUE_SCHEMA,
)
from pylog_spark.options.option import CommandLine, Option
from pylog_spark.record_text import (
    AvroFormat,
    RegistryFormat,
    ValueFormat,
    read_schema,
)
from storage_core.errors import ConfigError
from storage_core.values.registry import RegisteredSchema, read_schema_file

if TYPE_CHECKING:
    from storage_core.values.registry_columns import RegistryColumns


def key_format(line: CommandLine) -> ValueFormat | None:
    """Return how keys are written; None where nobody says it."""
    return _format(line, KEY_FORMAT, KEY_SCHEMA)


def value_format(line: CommandLine) -> ValueFormat | None:
    """Return how values are written; as ``key_format``."""
    if line[LOGICAL_TYPES] and not {line[KEY_FORMAT], line[VALUE_FORMAT]} & {*_BY_SCHEMA}:
        raise ConfigError(
            LOGICAL_TYPES.label, None, f"is for {VALUE_FORMAT.label} {' or '.join(_BY_SCHEMA)}"
        )
    return _format(line, VALUE_FORMAT, VALUE_SCHEMA)


_MOST_DIGITS: Final = 10
_BY_SCHEMA: Final = (*AVRO_FORMATS, BytesFormat.REGISTRY)


def registry_columns(
    line: CommandLine, topics: Iterable[str], formats: Mapping[str, ValueFormat | None]
) -> "dict[str, RegistryColumns]":
    """Return what makes columns of each topic's keys and values by the schemas of a registry;
    nothing where neither is of its form.

    Args:
        formats: How ``key`` and ``value`` are written.
    """
    registries = {
        name: each.registry for name, each in formats.items() if isinstance(each, RegistryFormat)
    }
    if not registries:
        for option in (READER_SCHEMA, READER_MESSAGE, ON_ERROR):
            if option in line:
                reason = f"is for {VALUE_FORMAT.label} {BytesFormat.REGISTRY}"
                if BytesFormat.REGISTRY in {line[KEY_FORMAT], line[VALUE_FORMAT]}:
                    reason = "is for columns, which --to parquet and delta have"
                raise ConfigError(option.label, line[option], reason)
        return {}
    from storage_core.values.registry_columns import (  # noqa: PLC0415  # Arrow's reader of JSON
        OptionNames,
        choose_columns,
    )

    choose = partial(
        choose_columns,
        registries,
        registry=next(iter(registries.values())),
        reader=_reader_schema(line[READER_SCHEMA]),
        message=line[READER_MESSAGE],
        on_error=line[ON_ERROR].value,
        options=OptionNames(
            key=KEY_FORMAT.label,
            value=VALUE_FORMAT.label,
            reader_schema=READER_SCHEMA.label,
            reader_message=READER_MESSAGE.label,
            on_error=ON_ERROR.label,
        ),
    )
    return {topic: choose(topics=[topic]) for topic in topics}


def _reader_schema(text: str | None) -> RegisteredSchema | int | None:
    if text is None or (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None if text is None else int(text)
    try:
        return read_schema_file(Path(text))
    except (OSError, ValueError) as error:
        raise ConfigError(READER_SCHEMA.label, text, str(error)) from error


def _format(
    line: CommandLine, how: Option[BytesFormat | None], schema: Option[Path | None]
) -> ValueFormat | None:
    written, file = line[how], line[schema]
    if written is BytesFormat.REGISTRY:
        return _registry_format(line, how)
    if written not in AVRO_FORMATS:
        if file is not None:
            raise ConfigError(schema.label, file, f"is for {how.label} {' or '.join(AVRO_FORMATS)}")
        return written
    if file is None:
        raise ConfigError(
            how.label, written, f"needs {schema.label} FILE: Avro does not say its own"
        )
    return AvroFormat(
        schema=read_schema(schema.label, file),
        has_registry_header=written is BytesFormat.AVRO_REGISTRY,
        has_logical=line[LOGICAL_TYPES],
    )


def _registry_format(line: CommandLine, how: Option[BytesFormat | None]) -> ValueFormat:
    from pylog_spark.registered_schemas import (  # noqa: PLC0415  # Arrow
        read_schemas_of_folder,
        read_schemas_of_roots,
    )

    folder = line[SCHEMAS]
    name = "key" if how is KEY_FORMAT else "value"
    if folder is not None:
        registry = read_schemas_of_folder(SCHEMAS.label, folder)
    elif line[ROOTS]:
        registry = read_schemas_of_roots(how.label, line[ROOTS])
    else:
        raise ConfigError(how.label, BytesFormat.REGISTRY, f"needs {SCHEMAS.label} DIR, or a root")
    return RegistryFormat(registry=registry, name=name, has_logical=line[LOGICAL_TYPES])
