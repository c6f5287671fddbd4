"""Pack arrays and facts into bytes, between processes of one run."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FACTS = "facts"


def pack_arrays(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return facts (as JSON) and arrays as bytes."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    named: dict[str, Any] = {_FACTS: text, **arrays}
    np.savez(buffer, **named)
    return buffer.getvalue()


def unpack_arrays(data: bytes | memoryview) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the facts and arrays of pack_arrays, without running any code. Nothing in the bytes
    is ever run as code."""
    with np.load(io.BytesIO(data), allow_pickle=False) as packed:
        arrays = {name: packed[name] for name in packed.files}
    facts = json.loads(arrays.pop(_FACTS).tobytes())
    return facts, arrays
