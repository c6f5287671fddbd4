"""Draw the pictures of a report with Vega-Lite.

A picture is a Vega-Lite specification with its data in it. ``vl-convert`` draws it as SVG inside of
this process: no browser, no network, and neither script nor style in what comes out. That is why it
is this one: Plotly needs five megabytes of script in every page, or a browser to draw without it;
Matplotlib measures names in a font that may lack their characters, writes styles that a strict page
would not apply, and has no names of colours to leave to the page. Colours here are such names, so
that light, dark and paper have their own.

Names in a picture come from directories: they are made printable here, and Vega escapes them.
"""

import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

from pylog_spark.report import partition_name, size_text
from pylog_spark.text import printable
from pylog_spark.view import Row, has_several_roots
from storage_core.wording import time_text

Specification = dict[str, Any]

# So many partitions, topics or runs have room.
MOST_ROWS: Final = 20
# So many segments of a partition can be told apart; neighbours of one state are drawn as one.
_MOST_MARKS: Final = 150
_DAY_MS: Final = 86_400_000
# Apache Kafka's records had no timestamps before; what claims to be older has another unit.
_FIRST_YEAR_MS: Final = 1_262_304_000_000  # 2010-01-01
_WIDTH: Final = 760
_ROW_HEIGHT: Final = 18
# Of a longer name the middle is left out: Vega leaves out an end, by which names differ.
_MOST_LETTERS: Final = 44
_SHORT_NAME: Final = (
    f"length(datum.label) <= {_MOST_LETTERS} ? datum.label : "
    f"slice(datum.label, 0, {_MOST_LETTERS // 2 - 1}) + '\u2026' + "
    f"slice(datum.label, {-_MOST_LETTERS // 2})"
)
# Labels of a time axis by how much time it spans, so that no two of them are equal.
_TIME_FORMATS: Final = (
    (10_000, "%H:%M:%S.%L"),
    (600_000, "%H:%M:%S"),
    (6 * 86_400_000, "%Y-%m-%d %H:%M"),
)
_DATE_FORMAT: Final = "%Y-%m-%d"
# From so many on, counts are drawn on a logarithmic scale: one is seen beside a million.
_MANY: Final = 100
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_CONFIG: Final = {
    "background": None,
    # A browser's letters may be wider than those by which Vega reckons.
    "padding": {"left": 48, "top": 5, "right": 30, "bottom": 5},
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--dim)",
        "titleFontWeight": "normal",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "gridColor": "var(--line)",
        "labelLimit": 0,
    },
    "legend": {"labelColor": "var(--ink)", "titleColor": "var(--dim)", "orient": "top"},
    "bar": {"stroke": "var(--paper)", "strokeWidth": 0.5},
    "header": {"labelColor": "var(--ink)"},
}
_SEGMENT_STATES: Final = ("expired", "dirty", "clean", "kept", "active")
_SEVERITIES: Final = ("fatal", "error", "warn", "harmless", "info")
_NO_TITLE: Final = {"title": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is to be drawn, and what it shows."""

    caption: str
    specification: Specification  # of Vega-Lite


def can_draw() -> bool:
    """Whether the package that draws is installed: the extra ``report``."""
    return importlib.util.find_spec("vl_convert") is not None


def draw(picture: Picture) -> str:
    """Return a picture as SVG to be put into a page."""
    import vl_convert  # noqa: PLC0415  # optional, and the start of a JavaScript engine

    svg: str = vl_convert.vegalite_to_svg({**picture.specification, "config": _CONFIG})
    return svg


def segments_by_size(rows: Sequence[Row]) -> Picture | None:
    """Show partitions' segments by size, oldest first; None without any.

    Args:
        rows: Of ``survey.observe_segments``, partition by partition in the order in which they are
            to stand, segments by their base offsets.
    """
    of_partition = _by_name(rows)
    unit, factor = _unit(max((_sum(own, "size_bytes") for own in of_partition.values()), default=0))
    values = []
    for name, own in of_partition.items():
        for number, segments in enumerate(_joined(own)):
            size = _sum(segments, "size_bytes")
            first, last = segments[0]["base_offset"], segments[-1]["base_offset"]
            which = f"segment {first}" if first == last else f"segments {first} to {last}"
            values.append(
                {
                    "name": name,
                    "number": number,
                    "size": size / factor,
                    "state": segments[0]["state"],
                    "text": f"{name}, {which}: {size_text(size)}, {segments[0]['state']}",
                }
            )
    if not any(value["size"] for value in values):
        return None
    return Picture(
        caption=(
            "Segments of the biggest partitions by size, the oldest on the left. Expired: retention"
            " would remove it now. Clean and dirty: of a compacted topic, before and behind the"
            " cleaner's checkpoint. Kept: nothing is due, or the topic's config is not known."
        ),
        specification=_rows(
            values,
            x={"field": "size", "type": "quantitative", "stack": "zero", "title": unit},
            order={"field": "number"},
            color=_colors("state", _SEGMENT_STATES, values),
        ),
    )


def segments_by_age(rows: Sequence[Row], *, now_ms: int) -> Picture | None:
    """Show the times of segments' newest records; None if unknown.

    Args:
        now_ms: What counts as the future is later than a day after it.
    """
    dated = [row for row in rows if row["newest_timestamp"] is not None and row["size_bytes"]]
    likely = [row for row in dated if _FIRST_YEAR_MS <= row["newest_timestamp"] <= now_ms + _DAY_MS]
    if not likely:
        return None
    several = has_several_roots(rows)
    values = [
        {
            "name": _label(row, several=several),
            "at": row["newest_timestamp"],
            "size": row["size_bytes"],
            "state": row["state"],
            "text": (
                f"{_label(row, several=several)}, segment {row['base_offset']}: newest record "
                f"{time_text(row['newest_timestamp'])}, {size_text(row['size_bytes'])}"
            ),
        }
        for row in _spread(likely)
    ]
    times = [row["newest_timestamp"] for row in likely]
    span_ms = max(times) - min(times)
    formats = (form for most_ms, form in _TIME_FORMATS if span_ms < most_ms)
    left_out = len(dated) - len(likely)
    unlikely = f" Left out: {left_out} of other years, or of the future." if left_out else ""
    return Picture(
        caption=(
            "The same segments by the time (UTC) of their newest record, as time indexes have it; "
            f"a larger circle is a larger segment.{unlikely}"
        ),
        specification=_rows(
            values,
            mark={"type": "circle", "opacity": 0.75},
            x={
                "field": "at",
                "type": "temporal",
                "scale": {"type": "utc"},
                "axis": {
                    "format": next(formats, _DATE_FORMAT),
                    "tickCount": 6 if span_ms else 1,
                },
                **_NO_TITLE,
            },
            size={
                "field": "size",
                "type": "quantitative",
                "scale": {"range": [12, 260]},
                "legend": None,
            },
            color=_colors("state", _SEGMENT_STATES, values),
        ),
    )


def before_and_after(rows: Sequence[Row], *, is_planned: bool) -> Picture | None:
    """Show partitions' bytes before and after a run; None without work.

    Args:
        rows: Of ``schemas.RESULT``, those that were planned or done, in the order of the steps.
        is_planned: Whether what comes after is a bound.
    """
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    several = has_several_roots(rows)
    for row in rows:
        if row["bytes_before"] is not None and row["bytes_after"] is not None:
            name = _label(row, several=several)
            before.setdefault(name, row["bytes_before"])
            after[name] = row["bytes_after"]
    names = sorted(before, key=lambda name: (-before[name], name))[:MOST_ROWS]
    if not any(before[name] or after[name] for name in names):
        return None
    unit, factor = _unit(max(max(before[name], after[name]) for name in names))
    later = "after, at most" if is_planned else "after"
    values = [
        {
            "name": name,
            "when": when,
            "size": sizes[name] / factor,
            "text": f"{name} {when}: {size_text(sizes[name])}",
        }
        for name in names
        for when, sizes in (("before", before), (later, after))
    ]
    return Picture(
        caption=f"Bytes of {_which(len(names), len(before), 'partitions', 'the biggest')}.",
        specification=_rows(
            values,
            step=_ROW_HEIGHT // 2,
            yOffset={"field": "when", "sort": ["before", later]},
            x={"field": "size", "type": "quantitative", "title": unit},
            color={
                "field": "when",
                "type": "nominal",
                "scale": {"domain": ["before", later], "range": _vars("before", "after")},
                **_NO_TITLE,
            },
        ),
    )


def dirty_ratios(rows: Iterable[Row], ratio_of: Callable[[Row], float | None]) -> Picture | None:
    """Show the dirtiest partitions; None where no log of theirs is compacted.

    Args:
        ratio_of: Dirty bytes of a partition over all that a cleaner looks at; None without.
    """
    weighed = [(row, ratio) for row in rows if (ratio := ratio_of(row)) is not None]
    dirtiest = sorted(weighed, key=lambda pair: -pair[1])[:MOST_ROWS]
    if not any(ratio for _, ratio in dirtiest):
        return None
    several = has_several_roots([row for row, _ in weighed])
    values = [
        {
            "name": (name := _label(row, several=several)),
            "ratio": ratio,
            "state": "dirty",
            "text": f"{name}: {ratio:.0%} dirty",
        }
        for row, ratio in dirtiest
    ]
    return Picture(
        caption=(
            f"Dirty ratio of {_which(len(values), len(weighed), 'partitions', 'the dirtiest')}: "
            "what was not cleaned yet, of all that a cleaner looks at. Kafka cleans a log from "
            "min.cleanable.dirty.ratio on, 50% unless its topic says otherwise."
        ),
        specification=_rows(
            values,
            mark={"type": "bar", "fill": "var(--dirty)"},
            x={
                "field": "ratio",
                "type": "quantitative",
                "scale": {"domain": [0, 1]},
                "axis": {"format": ".0%", "tickCount": 5},
                **_NO_TITLE,
            },
        ),
    )


def bytes_by_state(
    rows: Iterable[Row], states_of: Callable[[Row], Mapping[str, int]]
) -> Picture | None:
    """Show of what the biggest partitions consist; None without bytes."""
    split = [(row, states) for row in rows if any((states := states_of(row)).values())]
    biggest = sorted(split, key=lambda pair: -sum(pair[1].values()))[:MOST_ROWS]
    if not biggest:
        return None
    several = has_several_roots([row for row, _ in split])
    unit, factor = _unit(sum(biggest[0][1].values()))
    values = [
        {
            "name": (name := _label(row, several=several)),
            "state": state,
            "number": _SEGMENT_STATES.index(state),
            "size": size / factor,
            "text": f"{name}: {size_text(size)} {state}",
        }
        for row, states in biggest
        for state, size in states.items()
        if size
    ]
    return Picture(
        caption=(
            f"Bytes of {_which(len(biggest), len(split), 'partitions', 'the biggest')}. Expired: "
            "retention would remove them. Dirty: they would be read to be cleaned. Kept: nothing "
            "is due."
        ),
        specification=_rows(
            values,
            x={"field": "size", "type": "quantitative", "stack": "zero", "title": unit},
            order={"field": "number"},
            color=_colors("state", _SEGMENT_STATES, values),
        ),
    )


def finding_counts(counts: Iterable[tuple[str, str, int]]) -> Picture | None:
    """Show how many findings there are of each kind; None without any.

    Args:
        counts: Severity, code, how many; worst first.
    """
    counts = list(counts)
    values = [
        {
            "name": printable(code),
            "severity": severity,
            "count": count,
            "text": f"{printable(code)}, {severity}: {count}",
        }
        for severity, code, count in counts
    ]
    if not values:
        return None
    most = max(count for _, _, count in counts)
    scale, ticks, step = "linear", list(range(0, most + 1, -(-most // 10))), ""
    if most >= _MANY:
        scale, ticks = "symlog", [10**power for power in range(10)]
        step = "; each step of the scale is ten times as many"
    return Picture(
        caption=f"Findings by kind, the worst first{step}.",
        specification=_rows(
            values,
            x={
                "field": "count",
                "type": "quantitative",
                "axis": {"values": ticks, "format": "d"},
                "scale": {"type": scale},
                **_NO_TITLE,
            },
            color=_colors("severity", _SEVERITIES, values),
        ),
    )


def past_runs(rows: Sequence[Row]) -> Picture | None:
    """Show the removed bytes and durations of runs; None before one ended.

    Args:
        rows: ``past_runs.PastRun`` as mappings, the newest first.
    """
    ended = [
        row for row in rows if row["duration_ms"] is not None and row["started_ms"] is not None
    ]
    if not ended:
        return None
    freed = [(row["bytes_before"] or 0) - (row["bytes_after"] or 0) for row in ended]
    unit, factor = _unit(max(abs(size) for size in freed))
    values = [
        {
            "name": printable(row["run_id"]),
            "action": printable(row["action"]),
            "freed": size / factor,
            "seconds": row["duration_ms"] / 1000,
            "text": printable(
                f"{row['action']} {row['run_id']}: {size_text(size)} less, "
                f"{row['duration_ms'] / 1000:.1f} s"
            ),
        }
        for row, size in zip(ended, freed, strict=True)
    ]
    colors = ("active", "clean", "dirty", "expired", "kept")
    actions = sorted({value["action"] for value in values})
    panel: Specification = {
        "width": _WIDTH // 2 - 20,
        "height": {"step": _ROW_HEIGHT},
        "mark": "bar",
    }
    channels: Specification = {
        "color": {
            "field": "action",
            "type": "nominal",
            "scale": {"domain": actions, "range": _vars(*islice(cycle(colors), len(actions)))},
            **_NO_TITLE,
        },
        "description": {"field": "text"},
    }
    names = {"field": "name", "type": "nominal", "sort": None, **_NO_TITLE}
    less = {"field": "freed", "type": "quantitative", "title": f"{unit} less"}
    seconds = {"field": "seconds", "type": "quantitative", "title": "seconds"}
    return Picture(
        caption=(
            "What the last runs took away (a run that adds bytes, such as an undo, goes to the "
            "left), and how long they took; the newest first."
        ),
        specification={
            "data": {"values": values},
            "hconcat": [
                {**panel, "encoding": {**channels, "y": names, "x": less}},
                {**panel, "encoding": {**channels, "y": {**names, "axis": None}, "x": seconds}},
            ],
        },
    )


def _by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    of_name: dict[str, list[Row]] = defaultdict(list)
    several = has_several_roots(rows)
    for row in rows:
        of_name[_label(row, several=several)].append(row)
    return of_name


def _label(row: Row, *, several: bool) -> str:
    name = partition_name(row)
    return printable(f"{row['root']}: {name}") if several else name


def _joined(segments: Sequence[Row]) -> list[list[Row]]:
    """Return a partition's segments, neighbours of one state joined if many."""
    at_least = max(1, -(-len(segments) // _MOST_MARKS))
    joined: list[list[Row]] = []
    for segment in segments:
        last = joined[-1] if joined else []
        if last and len(last) < at_least and last[0]["state"] == segment["state"]:
            last.append(segment)
        else:
            joined.append([segment])
    return joined


def _spread(segments: Sequence[Row]) -> Sequence[Row]:
    """Return segments, or every n-th if too many for a picture."""
    return segments[:: max(1, -(-len(segments) // (_MOST_MARKS * MOST_ROWS)))]


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(row[name] for row in rows)


def _unit(most: int) -> tuple[str, int]:
    """Return the largest unit not above a number of bytes. The unit comes with its bytes."""
    power = min(max(most.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return _UNITS[power], 1024**power


def _which(count: int, of: int, what: str, first: str) -> str:
    return f"all {of:,} {what}" if count == of else f"{first} {count:,} of {of:,} {what}"


def _rows(
    values: Sequence[Mapping[str, Any]],
    *,
    mark: str | Specification = "bar",
    step: int = _ROW_HEIGHT,
    **channels: Specification,
) -> Specification:
    """Return a specification with a row per name, in value order.

    Args:
        values: Each with its ``name``, and a ``text`` for whoever does not see the picture.
        step: Pixels of a bar's height, and of the space above it.
        channels: How it is drawn, as Vega-Lite's ``encoding`` has it.
    """
    order = list(dict.fromkeys(value["name"] for value in values))
    return {
        "data": {"values": values},
        "width": _WIDTH,
        "height": {"step": step},
        "mark": mark,
        "encoding": {
            "y": {
                "field": "name",
                "type": "nominal",
                "sort": order,
                "axis": {"labelExpr": _SHORT_NAME},
                **_NO_TITLE,
            },
            "description": {"field": "text"},
            **channels,
        },
    }


def _colors(field: str, names: Sequence[str], values: Sequence[Mapping[str, Any]]) -> Specification:
    """Return a scale of colours; its legend has the names that occur."""
    there = {value[field] for value in values}
    domain = [name for name in names if name in there]
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": domain, "range": _vars(*domain)},
        **_NO_TITLE,
    }


def _vars(*names: str) -> list[str]:
    """Return the CSS variables of a page's colours."""
    return [f"var(--{name})" for name in names]
