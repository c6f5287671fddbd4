"""The picture of growth: time and memory over size, a line a kind of work, for ``docs``.

Both axes are logarithmic, so that what grows with the size is a straight line, parallel to the one
that is drawn dashed. Colours and text are of a middle brightness: they can be read on a light page
and on a dark one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from tests.bench.bench_growth import Growth

NAME: Final = "growth.svg"
_TEXT: Final = "#808080"
# Okabe and Ito's, of which nobody takes one for another, without black and yellow.
_COLOURS: Final = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
_MARKS: Final = ("o", "s", "^", "D")
_STYLE: Final[Any] = {
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "pylog",  # the same figures make the same file
    "text.color": _TEXT,
    "axes.edgecolor": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MIB: Final = 1 << 20


def draw_growth(growths: Sequence["Growth"], folder: Path) -> Path:
    """Write the picture and return its path.

    Args:
        growths: Of each kind of work and of size, in the order of the table.
    """
    kinds = list(dict.fromkeys(growth.of for growth in growths))
    with rc_context(_STYLE):
        figure = Figure(figsize=(3.2 * len(kinds), 4.6), layout="constrained")
        panels = figure.subplots(2, len(kinds), sharey="row", squeeze=False)
        for column, of in enumerate(kinds):
            some = [growth for growth in growths if growth.of == of]
            times, memory = panels[0][column], panels[1][column]
            for panel in (times, memory):
                panel.set_xscale("log")
                panel.set_yscale("log")
                panel.minorticks_off()
                panel.grid(visible=True, alpha=0.25)
            for number, growth in enumerate(some):
                sizes = [point.size for point in growth.points]
                line: dict[str, Any] = {
                    "color": _COLOURS[number % len(_COLOURS)],
                    "marker": _MARKS[number % len(_MARKS)],
                    "markersize": 4,
                }
                seconds = [point.seconds for point in growth.points]
                times.plot(sizes, seconds, label=f"{growth.work} ({growth.time_slope:.2f})", **line)
                memory.plot(sizes, [point.memory_bytes / _MIB for point in growth.points], **line)
            sizes = [point.size for point in some[-1].points]
            start = some[-1].points[0].seconds
            straight = [start * size / sizes[0] for size in sizes]
            times.plot(sizes, straight, color=_TEXT, linestyle="--", linewidth=1, label="(1)")
            times.legend(frameon=False, fontsize=8)
            memory.set_ylim(bottom=10)
            memory.set_xlabel(of)
        panels[0][0].set_ylabel("processor seconds (slope)")
        panels[1][0].set_ylabel("MiB at most")
        path = folder / NAME
        figure.savefig(path, transparent=True, metadata={"Date": None})
    return path
