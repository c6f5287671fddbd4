"""What makes a column of values: the face of the decoders of Avro, Protobuf and JSON."""

from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

# So many values that do not fit have their reason told; the others are counted.
MAX_REASONS: Final = 10


class Decoded(NamedTuple):
    """Values as a column, and which of them do not fit."""

    column: pa.Array  # of the decoder's type, a row a value; null where one is null or does not fit
    failed: np.ndarray  # int64, ascending: the rows of values that do not fit
    # Why, of the first MAX_REASONS of them: "position 31: expected ..., found ...".
    reasons: tuple[str, ...]


class Decoder(Protocol):
    """Makes a column of values by one schema. Their bytes may be hostile."""

    @property
    def type(self) -> pa.DataType:
        """The type of every column that it makes."""
        ...

    def decode(self, values: pa.Array) -> Decoded:
        """Return the column of some values.

        Args:
            values: Binary or large binary, without the five bytes of a registry.
        """
        ...
