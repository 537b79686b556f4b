"""The examples run, and say what they promise."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def printed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return [line for line in capsys.readouterr().out.splitlines() if " tokens" in line]


def test_contracts_with_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed("hf_contract.py", monkeypatch, capsys)
    found = [re.match(r" *(\d+) tokens.*?answer (\w+)", line) for line in lines]
    rows = [match.groups() for match in found if match]
    assert len(rows) == 6
    assert rows[:3] == rows[3:]  # the criterion and the chunks agree
    assert sum(answer.isdigit() for _, answer in rows) >= 4


def test_contracts_with_vllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed("vllm_offline.py", monkeypatch, capsys)
    tokens = [int(line.split()[0]) for line in lines]
    assert len(tokens) == 6
    assert all("contract:boxed_integer" in line for line in lines[3:])
    assert all(short < long for long, short in zip(tokens[:3], tokens[3:], strict=True))
