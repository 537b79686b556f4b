"""The report page: one self-contained HTML file from `results.json` and an example trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from specexit.errors import ConfigError
from specexit.files import read_json, write_text
from specexit.report.figures import accuracy_against_tokens, signals_of_a_trace
from specexit.report.table import Row, used_columns

LEAD = (
    "Thinking tokens, answers and time of each system on the same questions. SpecExit ends the "
    "thinking at a paragraph boundary once the draft head's signals say that it suffices; ACE ends "
    "the answer once it satisfies its contract."
)


def render(results: dict[str, Any], example: dict[str, Any] | None = None) -> str:
    """The page as text. `results` and `example` as `inference.study.demo` writes them."""
    rows: list[Row] = results["rows"]
    columns = used_columns(rows)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    return environment.get_template("page.html").render(
        title=results["meta"].get("title", "SpecExit results"),
        lead=LEAD,
        tiles=headline(rows),
        columns=columns,
        rows=[
            {
                "cells": [column.show(row) for column in columns],
                "highlight": row["system"] == "SpecExit + ACE",
            }
            for row in rows
        ],
        scatter=accuracy_against_tokens(rows),
        example=example,
        signals=signals_of_a_trace(example) if example else "",
        facts=list(_flat(results["meta"])),
    )


def headline(rows: list[Row]) -> list[dict[str, str]]:
    """The table in four numbers, SpecExit + ACE against EAGLE3; [] if either is absent."""
    by_name = {row["system"]: row for row in rows}
    base, ours = by_name.get("EAGLE3"), by_name.get("SpecExit + ACE")
    if base is None or ours is None:
        return []
    tiles = [
        {
            "value": f"−{100 * (1 - ours['think_tokens'] / base['think_tokens']):.0f} %",
            "text": "thinking tokens against EAGLE3",
        },
        {
            "value": f"{100 * (ours['accuracy'] - base['accuracy']):+.1f} points",
            "text": f"accuracy ({100 * base['accuracy']:.1f} → {100 * ours['accuracy']:.1f} %)",
        },
    ]
    if ours.get("latency_s") and base.get("latency_s"):
        tiles.append(
            {
                "value": f"{base['latency_s'] / ours['latency_s']:.2f}×",
                "text": "faster than EAGLE3 at batch 1",
            }
        )
        plain = by_name.get("no drafter")
        if plain and plain.get("latency_s"):
            tiles.append(
                {
                    "value": f"{plain['latency_s'] / ours['latency_s']:.2f}×",
                    "text": "faster than no drafter at batch 1",
                }
            )
    return tiles


def write_page(folder: str | Path) -> Path:
    """Render `folder/report.html` from `results.json` and, where present, `example.json` there."""
    directory = Path(folder)
    source = directory / "results.json"
    if not source.is_file():
        raise ConfigError(f"report: {source} is missing; give a folder with a results.json")
    example = directory / "example.json"
    page = directory / "report.html"
    write_text(page, render(read_json(source), read_json(example) if example.is_file() else None))
    return page


def _flat(value: dict[str, Any], prefix: str = "") -> Any:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{prefix}{key}.")
        elif key != "title":
            yield f"{prefix}{key}", item
