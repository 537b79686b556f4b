"""The report: the table's numbers, and a page that needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from specexit.errors import ConfigError
from specexit.files import write_json
from specexit.report.page import headline, render, write_page
from specexit.report.table import print_table, used_columns


def row(system: str, **values: Any) -> dict[str, Any]:
    return {
        "system": system,
        "source": "live",
        "n": 200,
        "accuracy": 0.95,
        "accuracy_ci": [0.91, 0.97],
        "think_tokens": 400.0,
        "output_tokens": 420.0,
        "latency_s": 1.0,
        **values,
    }


ROWS = [
    row("no drafter", latency_s=2.0),
    row("EAGLE3"),
    row("SpecExit + ACE", think_tokens=160.0, accuracy=0.945, latency_s=0.4),
]
EXAMPLE = {
    "question": "1 < 2?",
    "gold": "1",
    "signals": {"confidence": [0.1, 0.9], "progress": [0.5, 1.0], "remain": [100.0, 1.0]},
    "boundaries": [1, 2],
    "enabled": ["remain"],
    "thresholds": {"confidence": 0.8, "progress": 0.3, "remain": 200.0},
    "oracle": 1,
    "exit": 2,
    "parts": [{"kind": "kept", "text": "a <b>"}, {"mark": "exit", "text": "here"}],
}


def test_headline_compares_with_eagle3() -> None:
    values = [tile["value"] for tile in headline(ROWS)]
    # 1 - 160/400; 94.5 - 95.0; 1.0/0.4; 2.0/0.4
    assert values == ["−60 %", "-0.5 points", "2.50×", "5.00×"]


def test_empty_columns_are_left_out() -> None:
    assert "acceptance_length" not in [c.key for c in used_columns(ROWS)]


def test_the_table_prints_every_system(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(ROWS, "title")
    printed = capsys.readouterr().out
    assert "SpecExit + ACE" in printed
    assert "94.5 [91.0, 97.0]" in printed


def test_the_page_loads_nothing_from_elsewhere_and_escapes_text() -> None:
    page = render(
        {"meta": {"title": "T", "seed": 0, "versions": {"x": "1"}}, "rows": ROWS}, EXAMPLE
    )
    assert not re.search(r'(src|href)="(?!#)', page)  # svg uses refer to their own page only
    assert "a &lt;b&gt;" in page
    assert page.count("<svg") == 2
    assert "versions.x" in page


def test_the_same_results_give_the_same_page() -> None:
    results = {"meta": {"title": "T"}, "rows": ROWS}
    assert render(results, EXAMPLE) == render(results, EXAMPLE)


def test_write_page_needs_results(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"results\.json is missing"):
        write_page(tmp_path)
    write_json(tmp_path / "results.json", {"meta": {"title": "T"}, "rows": ROWS})
    assert write_page(tmp_path).read_text().startswith("<!doctype html>")
