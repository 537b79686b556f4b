"""The table that `build`, `merge` and `import` print."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(stats: dict[str, Any], out: str) -> None:
    """Print the main figures of a stats.json."""
    table = Table(title=f"dataset {out}", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    rows = {
        "traces": stats["traces"],
        "kept": stats["kept"],
        "accuracy (full thinking)": stats["accuracy"],
        "thinking tokens": f"{stats['thinking_tokens_mean']:.1f}",
        "of these sufficient": f"{stats['t_star_mean']:.1f}",
        "probe cost ratio": stats["probe_cost_ratio"],
        "all boundaries without reuse": stats["all_boundaries_without_reuse"]["cost_ratio"],
        "cache hit rate": stats["cache_hit_rate"],
    }
    for name, value in rows.items():
        table.add_row(name, "-" if value is None else str(value))
    for reason, count in {**stats["drop_reasons"], **stats["questions_dropped"]}.items():
        table.add_row(f"dropped: {reason}", str(count))
    Console().print(table)
