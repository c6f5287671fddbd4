"""Errors about what was said on the command line name the argument that said it."""

from collections.abc import Iterator
from contextlib import contextmanager

from storage_core.errors import ConfigError


@contextmanager
def said_as(argument: str, said: object) -> Iterator[None]:
    """Let errors about a place that cannot be opened name the argument that said it.

    A store only knows the location that it was asked for; a person looks for the argument.

    Args:
        argument: As the help has it: ``ROOT``, ``PATH``.
        said: Its text.

    Raises:
        ConfigError: The place is of a kind that nobody knows, or its package is not installed.
    """
    try:
        yield
    except ConfigError as error:
        error.key, error.value = argument, said
        raise
