"""Close a dataset folder: statistics, card, plots, provenance."""

from __future__ import annotations

import sys
from typing import Any

from data_build.card import dataset_card
from data_build.config import DataSettings
from data_build.folder import RunFolder
from data_build.plots import write_plots
from data_build.statistics import statistics, tally
from specexit.files import write_json, write_text
from specexit.provenance import write_provenance


def finish(folder: RunFolder, settings: DataSettings) -> dict[str, Any]:
    """Write what describes a finished folder; the contents of its stats.json."""
    counts = tally(folder.path)
    stats = statistics(folder, counts)
    write_json(folder.path / "stats.json", stats)
    write_text(folder.path / "dataset_card.md", dataset_card(settings, stats))
    write_plots(folder.path / "plots.png", counts)
    write_provenance(
        folder.path,
        command="specexit " + " ".join(["data", *_arguments()]),
        seed=settings.seed,
        config=settings.model_dump(mode="json"),
        data_hash=stats["data_hash"],
    )
    return stats


def _arguments() -> list[str]:
    return sys.argv[2:] if len(sys.argv) > 2 else []
