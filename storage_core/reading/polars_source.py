"""A Polars predicate as a filter of Arrow: what it leaves to read is then found as for any filter.

A predicate is read as the JSON that Polars makes of it. What is not known here is left out of the
filter, which then lets more pass; Polars applies the predicate to all of that.
"""

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from storage_core.filenames import TopicPartition
from storage_core.reading.ranges import COLUMN_TYPES

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "Gt": operator.gt,
    "GtEq": operator.ge,
    "Lt": operator.lt,
    "LtEq": operator.le,
    "Eq": operator.eq,
}
_MIRRORED: Final = {"Gt": "Lt", "GtEq": "LtEq", "Lt": "Gt", "LtEq": "GtEq", "Eq": "Eq"}
_BETWEEN: Final = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}
_MICROSECONDS: Final = {"Microseconds": 1, "Milliseconds": 1000}
_OF_PARTITIONS: Final = frozenset({"topic", "partition"})


def arrow_filter(predicate: Any, partitions: Iterable[TopicPartition]) -> Any:
    """Return a filter that all records pass that pass a predicate; None where nothing is known.

    Args:
        predicate: An expression of Polars.
        partitions: Those that are read.
    """
    from polars.exceptions import ComputeError  # noqa: PLC0415  # whoever calls this has it

    # A function of Python has no JSON, and what is nested without end no parser: more passes.
    with suppress(ComputeError, RecursionError):
        tree = json.loads(predicate.meta.serialize(format="json"))
        return _filter_of(tree, list(partitions))
    return None


def _filter_of(tree: Any, partitions: list[TopicPartition]) -> Any:
    names = _column_names(tree)
    if names and names <= _OF_PARTITIONS:
        return _of_partitions(tree, partitions)
    known: Any = None
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            known = _both(_filter_of(left, partitions), _filter_of(right, partitions))
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            first, second = _filter_of(left, partitions), _filter_of(right, partitions)
            known = None if first is None or second is None else first | second
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": op, "right": {"Literal": value}}}:
            known = _comparison(name, op, value)
        case {"BinaryExpr": {"left": {"Literal": value}, "op": op, "right": {"Column": str(name)}}}:
            known = _comparison(name, _MIRRORED.get(op, ""), value)
        case {
            "Function": {
                "input": [{"Column": str(name)}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": {"closed": str(closed)}}},
            }
        } if closed in _BETWEEN:
            least, most = _BETWEEN[closed]
            known = _both(_comparison(name, least, low), _comparison(name, most, high))
    return known


def _both(first: Any, second: Any) -> Any:
    """Return a filter for what passes two that may not be known."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _of_partitions(tree: Any, partitions: list[TopicPartition]) -> Any:
    """Return which partitions a term about topic and partition alone leaves."""
    import polars  # noqa: PLC0415  # as above

    names = sorted(_OF_PARTITIONS)
    columns = {name: [getattr(place, name) for place in partitions] for name in names}
    frame = polars.DataFrame(columns, {"partition": polars.Int32, "topic": polars.String})
    term = polars.Expr.deserialize(json.dumps(tree).encode(), format="json")
    by_topic: dict[str, list[int]] = {}
    for number, topic in frame.filter(term).select(names).iter_rows():
        by_topic.setdefault(topic, []).append(number)
    some = ds.scalar(False)  # noqa: FBT003  # Arrow's
    for topic, numbers in by_topic.items():
        some |= (ds.field("topic") == topic) & ds.field("partition").isin(
            pa.array(numbers, COLUMN_TYPES["partition"])
        )
    return some


def _comparison(name: str, word: str, literal: Any) -> Any:
    value = {"offset": _integer, "timestamp": _time}.get(name, _nothing)(literal)
    if value is None or word not in _OPERATORS:
        return None
    return _OPERATORS[word](ds.field(name), value)


def _column_names(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        own = {tree["Column"]} if isinstance(tree.get("Column"), str) else set()
        return own.union(*map(_column_names, tree.values()))
    return set().union(*map(_column_names, tree)) if isinstance(tree, list) else set()


def _nothing(_literal: Any) -> None:
    return None


def _integer(literal: Any) -> pa.Scalar | None:
    match literal:
        case {"Dyn": {"Int": int(number)}}:
            return _scalar(number, "offset")
        case {"Scalar": dict(scalar)} if len(scalar) == 1:
            ((kind, value),) = scalar.items()
            return _scalar(value, "offset") if "Int" in kind and isinstance(value, int) else None
    return None


def _time(literal: Any) -> pa.Scalar | None:
    match literal:
        case {"Scalar": {"Datetime": [int(number), str(unit), _]}} if unit in _MICROSECONDS:
            with suppress(OverflowError):
                time = _EPOCH + timedelta(microseconds=number * _MICROSECONDS[unit])
                return _scalar(time, "timestamp")
    return None


def _scalar(value: Any, name: str) -> pa.Scalar | None:
    with suppress(pa.ArrowInvalid, OverflowError):
        return pa.scalar(value, COLUMN_TYPES[name])
    return None
