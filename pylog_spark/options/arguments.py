"""Name the command line's argument in an error about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from pylog_spark.options.choices import BytesFormat
from pylog_spark.options.declared import KEY_FORMAT, VALUE_FORMAT
from pylog_spark.options.option import CommandLine
from storage_core.errors import ConfigError


@contextmanager
def said_as(argument: str, text: object) -> Iterator[None]:
    """Let errors about an unusable place name its argument.

    A store only knows the location that it was asked for; a person looks for the argument.

    Args:
        argument: The argument's name in the help: ``ROOT``, ``PATH``.
    """
    try:
        yield
    except ConfigError as error:
        error.key, error.value = argument, text
        raise


def refuse_raw(line: CommandLine, reason: str) -> None:
    """Refuse raw keys and values where the output cannot hold them."""
    for option in (KEY_FORMAT, VALUE_FORMAT):
        if line[option] is BytesFormat.RAW:
            raise ConfigError(option.label, BytesFormat.RAW, reason)
