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


def write_plots(file: Path, counts: Tally) -> bool:
    """Write one PNG with three panels; False without matplotlib or without kept traces."""
    try:
        import matplotlib
    except ImportError:
        logger.info("no plots: matplotlib is not installed")
        return False
    if not counts.t_star:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    thinking, t_star = np.array(counts.thinking), np.array(counts.t_star)
    figure, panels = pyplot.subplots(1, 3, figsize=(15, 4), layout="constrained")
    _thinking(panels[0], thinking, t_star)
    _first(panels[1], np.array(counts.first), t_star)
    _agreement(panels[2], counts.agreement)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_path(file) as temporary:
        figure.savefig(temporary, format="png", dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return True


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
