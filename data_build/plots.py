"""Pictures of a dataset: thinking before and after, first against stable, agreement."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from data_build.statistics import Tally
from specexit.files import atomic_path

logger = logging.getLogger(__name__)

_BLUE, _ORANGE, _GREY = "#2b6cb0", "#dd6b20", "#718096"
MIN_PROBES = 5  # a boundary with fewer is left out of the agreement plot


def write_plots(folder: Path, counts: Tally) -> list[Path]:
    """Write the PNG files into `folder`; none without matplotlib or without kept traces."""
    try:
        import matplotlib
    except ImportError:
        logger.info("no plots: matplotlib is not installed")
        return []
    if not counts.t_star:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    thinking, t_star = np.array(counts.thinking), np.array(counts.t_star)
    files = []
    for name, draw in {
        "thinking.png": lambda axes: _thinking(axes, thinking, t_star),
        "first_and_stable.png": lambda axes: _first(axes, np.array(counts.first), t_star),
        "agreement.png": lambda axes: _agreement(axes, counts.agreement),
    }.items():
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        with atomic_path(folder / name) as temporary:
            figure.savefig(temporary, format="png", dpi=120, metadata={"Software": None})
        pyplot.close(figure)
        files.append(folder / name)
    return files


def _thinking(axes: Any, thinking: Any, t_star: Any) -> None:
    bins = np.linspace(0, max(1, thinking.max()), 40)
    axes.hist(thinking, bins, alpha=0.6, color=_GREY, label=f"full, mean {thinking.mean():.0f}")
    axes.hist(t_star, bins, alpha=0.6, color=_BLUE, label=f"sufficient, mean {t_star.mean():.0f}")
    axes.set(xlabel="thinking tokens", ylabel="traces", title="Thinking before and after")
    axes.legend(frameon=False)


def _first(axes: Any, first: Any, t_star: Any) -> None:
    top = max(1, t_star.max())
    axes.plot([0, top], [0, top], color=_GREY, linewidth=1)
    axes.scatter(first, t_star, s=8, alpha=0.4, color=_ORANGE, edgecolors="none")
    lucky = float((first < t_star).mean())
    axes.set(
        xlabel="tokens until the answer first came out (probed boundaries)",
        ylabel="tokens until it stayed",
        title=f"First against stable: {lucky:.1%} of the traces differ",
    )


def _agreement(axes: Any, agreement: dict[int, list[int]]) -> None:
    points = [(k, agreed / probed) for k, (probed, agreed) in sorted(agreement.items())
              if probed >= MIN_PROBES]  # fmt: skip
    axes.plot([k for k, _ in points], [share for _, share in points], marker="o", color=_BLUE)
    axes.set(
        xlabel="boundary",
        ylabel="share of trial answers",
        title="Trial answer equals the full output's answer",
        ylim=(0, 1.02),
    )
