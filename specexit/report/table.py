"""The table of systems: columns, formatting, and how it prints in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its key in a row, its heading, its unit or meaning, and its format."""

    key: str
    heading: str
    meaning: str
    show: Callable[[Row], str]


def _number(key: str, form: str, scale: float = 1) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.get(key)
        return "" if value is None else format(value * scale, form)

    return show


def _accuracy(row: Row) -> str:
    low, high = row["accuracy_ci"]
    return f"{100 * row['accuracy']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _lost(row: Row) -> str:
    return "" if row.get("lost") is None else f"{100 * row['lost']:.1f}"


COLUMNS: tuple[Column, ...] = (
    Column("system", "system", "how the answer was made", lambda row: str(row["system"])),
    Column("source", "run", "live in vLLM, or replayed on the table", lambda r: str(r["source"])),
    Column("n", "n", "questions", _number("n", "d")),
    Column("accuracy", "accuracy %", "right answers, 95 % interval", _accuracy),
    Column("lost", "lost %", "right with full thinking, wrong here", _lost),
    Column("think_tokens", "thinking", "mean thinking tokens", _number("think_tokens", ".0f")),
    Column("output_tokens", "output", "mean output tokens", _number("output_tokens", ".0f")),
    Column(
        "oracle_share",
        "oracle %",
        "share of the oracle's saving in thinking tokens",
        _number("oracle_share", ".0f", 100),
    ),
    Column(
        "latency_s", "latency ms", "mean per question, batch 1", _number("latency_s", ".0f", 1e3)
    ),
    Column(
        "latency_batch_s",
        "batch ms",
        "mean per question in a batch of 8",
        _number("latency_batch_s", ".0f", 1e3),
    ),
    Column("tokens_per_s", "tokens/s", "batch 1", _number("tokens_per_s", ".0f")),
    Column(
        "acceptance_length",
        "accepted",
        "tokens per verification step",
        _number("acceptance_length", ".2f"),
    ),
)


def used_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that at least one row fills."""
    return [c for c in COLUMNS if any(row.get(c.key) is not None for row in rows)]


def print_table(rows: Sequence[Row], title: str, console: Console | None = None) -> None:
    """Print the rows; wide enough for a log file too."""
    table = Table(title=title, title_justify="left")
    columns = used_columns(rows)
    for column in columns:
        table.add_column(
            column.heading, justify="left" if column.key in ("system", "source") else "right"
        )
    for row in rows:
        table.add_row(*(column.show(row) for column in columns))
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)
