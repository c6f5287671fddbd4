"""How a command line wants keys and values written."""

from pathlib import Path

from pylog_spark.options.choices import AVRO_FORMATS, BytesFormat
from pylog_spark.options.declared import KEY_FORMAT, KEY_SCHEMA, VALUE_FORMAT, VALUE_SCHEMA
from pylog_spark.options.option import CommandLine, Option
from pylog_spark.record_text import AvroFormat, ValueFormat, read_schema
from storage_core.errors import ConfigError


def key_format(line: CommandLine) -> ValueFormat | None:
    """Return how keys are written; None where nobody says it."""
    return _format(line, KEY_FORMAT, KEY_SCHEMA)


def value_format(line: CommandLine) -> ValueFormat | None:
    """Return how values are written; as ``key_format``."""
    return _format(line, VALUE_FORMAT, VALUE_SCHEMA)


def _format(
    line: CommandLine, how: Option[BytesFormat | None], schema: Option[Path | None]
) -> ValueFormat | None:
    written, file = line[how], line[schema]
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
    )
