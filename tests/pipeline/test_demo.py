"""The demo, small: every stage runs, and the table says what must be true whatever the sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SIZES = (
    "train_questions=40",
    "calibration_questions=30",
    "test_questions=12",
    "latency_questions=1",
    "batch_latency_questions=8",
    "epsilon=0.2",  # 30 questions cannot promise less
    "delta=0.3",
)


def run_demo(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specexit.cli", "demo", *SIZES, "--out", str(out), "-q"]
    # the demo binds its processes to cores itself
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_CPU_OMP_THREADS_BIND"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "run"
    done = run_demo(folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def rows(out: Path) -> dict[str, dict[str, Any]]:
    results = json.loads((out / "results.json").read_text())
    return {row["system"]: row for row in results["rows"]}


@pytest.fixture(scope="module")
def answers(out: Path) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in (out / "answers.jsonl").read_text().splitlines():
        item = json.loads(line)
        found.setdefault(item["system"], {})[item["id"]] = item
    return found


@pytest.mark.timeout(1000)
def test_every_system_is_in_the_table(rows: dict[str, dict[str, Any]]) -> None:
    live = {"no drafter", "EAGLE3", "SpecExit", "SpecExit + ACE"}
    replayed = {"SpecExit (linear head)", "fixed budget", "position only", "oracle"}
    assert live | replayed == set(rows)
    for name in live:
        row = rows[name]
        assert row["n"] == 12
        low, high = row["accuracy_ci"]
        assert low <= row["accuracy"] <= high
        for key in ("output_tokens", "latency_s", "latency_batch_s", "tokens_per_s"):
            assert row[key] > 0, (name, key)
    for name in live | replayed:
        assert rows[name]["think_tokens"] > 0, name
    assert rows["oracle"]["oracle_share"] == 1.0


def test_the_drafter_changes_no_answer_in_fp32(
    answers: dict[str, dict[str, dict[str, Any]]], rows: dict[str, dict[str, Any]]
) -> None:
    for key, plain in answers["no drafter"].items():
        drafted = answers["EAGLE3"][key]
        assert drafted["output_tokens"] == plain["output_tokens"]
        assert drafted["answer"] == plain["answer"]
    assert rows["no drafter"]["acceptance_length"] == 1.0
    assert rows["EAGLE3"]["acceptance_length"] > 1.1  # after some 20 steps of training


def test_ace_changes_no_answer_and_only_saves_tokens(
    answers: dict[str, dict[str, dict[str, Any]]],
) -> None:
    for key, full in answers["SpecExit"].items():
        stopped = answers["SpecExit + ACE"][key]
        assert stopped["answer"] == full["answer"]
        assert stopped["think_tokens"] == full["think_tokens"]
        assert stopped["output_tokens"] <= full["output_tokens"]
    stopped_early = [a for a in answers["SpecExit + ACE"].values() if a["stop_reason"]]
    assert len(stopped_early) >= 10  # nearly every answer ends in a box


def test_no_exit_thinks_longer_than_full_thinking(
    answers: dict[str, dict[str, dict[str, Any]]],
) -> None:
    for key, full in answers["no drafter"].items():
        exited = answers["SpecExit"][key]
        assert exited["think_tokens"] <= full["think_tokens"]
        injected = (exited["record"] or {}).get("exit") == "injected"
        assert injected == (exited["think_tokens"] < full["think_tokens"])


def test_the_page_and_the_provenance_are_written(out: Path) -> None:
    page = (out / "report.html").read_text()
    assert "SpecExit + ACE" in page
    assert "<svg" in page
    assert json.loads((out / "provenance.json").read_text())["seed"] == 0


def test_a_second_run_only_shows_the_results(out: Path) -> None:
    results = out / "results.json"
    before = results.read_bytes(), results.stat().st_mtime_ns
    (out / "report.html").unlink()
    assert run_demo(out).returncode == 0
    assert (results.read_bytes(), results.stat().st_mtime_ns) == before
    assert (out / "report.html").exists()


def test_other_settings_in_the_same_folder_are_refused(out: Path) -> None:
    command = [sys.executable, "-m", "specexit.cli", "demo", "--out", str(out), "seed=5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "other settings" in done.stderr
