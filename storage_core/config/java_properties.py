"""Java's properties text: the form of ``server.properties`` and ``meta.properties``."""

import io

import javaproperties

from storage_core.errors import CheckpointError


def parse_java_properties(data: bytes, *, file: str) -> dict[str, str]:
    """Parse a properties file as ``java.util.Properties`` does.

    Args:
        data: The whole file, ISO 8859-1 with escapes.
        file: Its name, for the error.

    Returns:
        Values by key, the last one of a key; an entry without a separator has an empty value.

    Raises:
        CheckpointError: An escape is malformed.
    """
    try:
        return dict(javaproperties.load(io.BytesIO(data)))
    except javaproperties.InvalidUEscapeError as error:
        raise CheckpointError(file, 0, f"expected \\uXXXX, found {error.escape}") from error
