"""Figures of the report as inline SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1c2530"
MUTED = "#8a94a3"
COLOURS = {"confidence": "#2f6fde", "progress": "#2c9a62", "remain": "#d9772b"}
EXIT = "#c02942"
ORACLE = "#6c4bb4"
_MARKERS = "osD^vPX*<>hd"


def accuracy_against_tokens(rows: Sequence[dict[str, Any]]) -> str:
    """Each system's accuracy (with its interval) over its mean thinking tokens."""
    figure, axes = _figure(7.6, 4.0)
    for i, row in enumerate(r for r in rows if r.get("think_tokens") is not None):
        low, high = row["accuracy_ci"]
        y = 100 * row["accuracy"]
        axes.errorbar(
            row["think_tokens"],
            y,
            yerr=[[y - 100 * low], [100 * high - y]],
            fmt=_MARKERS[i % len(_MARKERS)],
            color=f"C{i % 10}",
            mfc="white" if row["source"] == "replay" else None,
            markersize=8,
            elinewidth=1,
            capsize=3,
            label=row["system"],
        )
    axes.set_xlabel("mean thinking tokens")
    axes.set_ylabel("accuracy, %")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _svg(figure)


def signals_of_a_trace(example: dict[str, Any]) -> str:
    """One trace's three smoothed signals over its thinking, with thresholds, exit and oracle."""
    figure, panels = _figure(9.2, 4.6, rows=3)
    steps = range(1, len(example["signals"]["confidence"]) + 1)
    for axes, (name, colour) in zip(panels, COLOURS.items(), strict=True):
        values = example["signals"][name]
        axes.plot(steps, values, color=colour, lw=1.6, drawstyle="steps-post")
        axes.set_ylabel(name, color=colour)
        for boundary in example["boundaries"]:
            axes.axvline(boundary, color=MUTED, lw=0.4, alpha=0.6)
        if name in example["enabled"]:
            axes.axhline(example["thresholds"][name], color=colour, lw=1, ls="--")
        axes.axvline(example["oracle"], color=ORACLE, lw=1.6, ls=":")
        if example["exit"] is not None:
            axes.axvline(example["exit"], color=EXIT, lw=1.6)
        if name == "remain":
            axes.set_yscale("symlog", linthresh=10)
        else:
            axes.set_ylim(-0.05, 1.05)
    panels[-1].set_xlabel("thinking token")
    top = panels[0]
    top.text(example["oracle"], 1.1, "sufficient (oracle)", color=ORACLE, ha="right", fontsize=8)
    if example["exit"] is not None:
        top.text(example["exit"], 1.1, " exit", color=EXIT, ha="left", fontsize=8)
    return _svg(figure)


def _figure(width: float, height: float, rows: int = 1) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    made = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for axes in made:
        _style(axes)
    return figure, list(made) if rows > 1 else made[0]


def _style(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(axis="y", color="#e3e7ec", lw=0.7)
    axes.set_axisbelow(True)


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    # a fixed salt makes the ids, and so the file, the same each time
    with rc_context({"svg.hashsalt": "specexit", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
