"""`specexit serve --dry-run` and `specexit doctor`: no server is started here."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference.vllm import doctor, serve
from inference.vllm.cpu_environment import cpu_environment
from specexit.cli import main
from specexit.errors import CheckpointError, ConfigError
from specexit.policy import ExitPolicy

from .chaos import edit_metadata, make_head


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, str]:
    """Flags of the printed `vllm serve` command."""
    assert serve.main([*argv, "--dry-run"]) == 0
    words = shlex.split(capsys.readouterr().out)
    at = words.index("serve")
    assert words[at - 1] == "vllm"
    flags = words[at + 2 :]
    values: dict[str, str] = {"TARGET": words[at + 1]}
    for i, word in enumerate(flags):
        if word.startswith("--"):
            following = flags[i + 1] if i + 1 < len(flags) else ""
            values[word] = "" if following.startswith("--") else following
    return values


@pytest.fixture
def pair(chaos: Path) -> list[str]:
    return [str(chaos / "target"), "--head", str(chaos / "memory")]


def test_the_head_s_metadata_becomes_flags(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = printed(capsys, *pair, "--num-speculative-tokens", "2")
    assert flags["TARGET"] == pair[0]
    assert flags["--worker-cls"] == "inference.vllm.SpecExitWorker"
    assert flags["--scheduler-cls"] == "inference.vllm.SpecExitScheduler"
    assert json.loads(flags["--speculative-config"]) == {
        "method": "eagle3",
        "model": pair[2],
        "num_speculative_tokens": 2,
    }
    assert flags["--reasoning-parser"] == "qwen3"
    assert "--additional-config" not in flags  # the head carries its policy


def test_flags_given_by_hand_win_and_are_passed_on(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = printed(capsys, *pair, "--reasoning-parser", "deepseek_r1", "--port", "9", "--headless")
    assert flags["--reasoning-parser"] == "deepseek_r1"
    assert flags["--port"] == "9"
    assert flags["--headless"] == ""


def test_policy_overrides_are_merged_into_the_additional_config(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = json.dumps({"other": 1, "specexit": {"patience": 3, "thresholds": {"remain": 9}}})
    flags = printed(
        capsys,
        *pair,
        "--additional-config",
        given,
        "--policy",
        "thresholds.confidence=0.5",
        "--policy",
        "patience=2",
    )
    assert json.loads(flags["--additional-config"]) == {
        "other": 1,
        "specexit": {"patience": 2, "thresholds": {"remain": 9, "confidence": 0.5}},
    }


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("patience=0", "patience"),
        ("patiense=1", "patiense"),
        ("thresholds.confidence=7", "thresholds.confidence"),
        ("patience", "key=value"),
    ],
)
def test_a_wrong_policy_is_refused_before_a_server_starts(
    pair: list[str], override: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        serve.main([*pair, "--policy", override, "--dry-run"])


def test_a_head_for_another_target_is_refused(chaos: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path / "head", chaos / "target", policy=ExitPolicy())
    facts = json.loads((head / "specexit" / "specexit.json").read_text())["target"]
    edit_metadata(head, target={**facts, "hidden_size": 4096})
    with pytest.raises(CheckpointError, match="hidden_size is 64, the head expects 4096"):
        serve.main([str(chaos / "target"), "--head", str(head), "--dry-run"])


def test_a_plain_head_and_a_missing_one_are_refused_with_the_way_out(
    chaos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(chaos / "target")
    assert main(["serve", target, "--head", target, "--dry-run"]) == 1
    assert "specexit train" in capsys.readouterr().err
    assert main(["serve", target, "--head", "./nowhere", "--dry-run"]) == 1


def test_the_cpu_environment_keeps_what_is_set() -> None:
    added = cpu_environment({"VLLM_CPU_KVCACHE_SPACE": "7", "LD_PRELOAD": "/x/mine.so"})
    assert "VLLM_CPU_KVCACHE_SPACE" not in added
    if "LD_PRELOAD" in added:
        assert added["LD_PRELOAD"].endswith(":/x/mine.so")
        assert all(Path(p).is_file() for p in added["LD_PRELOAD"].split(":")[:-1])
    assert cpu_environment({})["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_doctor_finds_what_this_test_run_stands_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "doctor.json"
    assert doctor.main(["--json", str(report), "-q"]) == 0
    rows: list[dict[str, Any]] = json.loads(report.read_text())["rows"]
    status = {row["name"]: row["status"] for row in rows}
    for name in ("torch", "transformers", "vllm", "vllm seams", "vllm plug-in"):
        assert status[name] == "ok", rows
    assert "vllm seams" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("VLLM_PLUGINS", "other", "vllm plug-in", "missing"),
        ("VLLM_USE_RUST_FRONTEND", "1", "front end", "limited"),
    ],
)
def test_doctor_sees_a_setting_that_switches_specexit_off(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    found = {f.name: f for f in doctor.examine()}
    assert found[name].status == expected
    assert variable in found[name].detail


def test_doctor_names_a_seam_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine import detokenizer

    monkeypatch.delattr(detokenizer, "SlowIncrementalDetokenizer")
    found = {f.name: f for f in doctor.examine()}
    assert found["vllm seams"].status == "missing"
    assert "SlowIncrementalDetokenizer" in found["vllm seams"].detail


def test_help_of_both_commands_reads(capsys: pytest.CaptureFixture[str]) -> None:
    for command, word in (("serve", "--head"), ("doctor", "--engine")):
        done = subprocess.run(
            [sys.executable, "-m", "specexit.cli", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert word in done.stdout
