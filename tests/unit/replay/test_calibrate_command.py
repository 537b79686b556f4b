"""`specexit calibrate` and `specexit replay eval`, on tables whose best policy is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.study import calibrate, replay_cli
from specexit.checkpoint import HeadMetadata, TargetFacts, load_metadata, save_signal_head
from specexit.errors import ConfigError
from specexit.files import read_json
from specexit.heads.signal import SignalHead
from specexit.replay import ReplayTable
from tests.unit.replay.tables import known_table


@pytest.fixture
def table_folder(tmp_path: Path) -> Path:
    table = known_table(900, seed=3, noise=0.3, wrong=0.05)
    splits = ("calibration",) * 600 + ("test",) * 300
    replace(table, splits=splits, source={"kind": "memory"}).save(tmp_path / "table")
    return tmp_path / "table"


@pytest.fixture
def head_folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    head = SignalHead("memory", 12, rows=4, readout_size=8)
    metadata = HeadMetadata(
        kind="memory",
        rows=4,
        readout_size=8,
        in_features=12,
        aux_layer_ids=(1, 2, 3),
        think_start_ids=(1,),
        think_end_ids=(2,),
        target=TargetFacts(model_type="qwen3", hidden_size=4, num_hidden_layers=4, vocab_size=16),
    )
    save_signal_head(tmp_path / "head", head, metadata)
    return tmp_path / "head"


def test_calibrated_policy_and_certificate_become_the_heads_default(
    table_folder: Path, head_folder: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    settings = [f"table={table_folder}", f"head={head_folder}", "epsilon=0.02"]
    code = calibrate.main(["--json", str(report), "--out", str(tmp_path), *settings])
    assert code == 0
    result = read_json(report)
    assert (result["epsilon"], result["delta"], result["n"]) == (0.02, 0.1, 600)
    assert result["certificate"]["exits"]
    assert result["test"]["n"] == 300
    metadata = load_metadata(head_folder)
    assert metadata.policy.model_dump(mode="json") == result["policy"]
    assert metadata.calibration is not None
    assert metadata.calibration["p_value"] == result["certificate"]["p_value"]
    assert read_json(tmp_path / "certificate.json") == result


def test_resampling_reports_the_rate_of_broken_promises(table_folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--resample", "200", "--json", str(report), f"table={table_folder}"]
    assert calibrate.main([*arguments, "epsilon=0.02"]) == 0
    result = read_json(report)
    assert result["resample"]["repeats"] == 200
    assert result["violation_rate"] == result["resample"]["violations"] / 200
    assert result["resample"]["violation_ci"][0] <= result["delta"]


def test_small_split_leaves_the_head_as_it_was(table_folder: Path, head_folder: Path) -> None:
    before = load_metadata(head_folder)
    with pytest.raises(ConfigError, match="needs at least 2302"):
        calibrate.main([f"table={table_folder}", f"head={head_folder}", "epsilon=0.001"])
    assert load_metadata(head_folder) == before


def test_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder .*/nowhere; `specexit replay record`"):
        calibrate.main([f"table={tmp_path / 'nowhere'}"])


def test_missing_split_is_named(table_folder: Path) -> None:
    with pytest.raises(ConfigError, match="no 'dev' traces; it has calibration, test"):
        calibrate.main([f"table={table_folder}", "calibration_split=dev"])


def test_policy_file_is_evaluated_with_intervals(
    table_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, report = tmp_path / "remain.yaml", tmp_path / "report.json"
    policy.write_text("signals: [remain]\nthresholds: {remain: 5}\nsmoothing: {kind: none}\n")
    arguments = ["eval", "--table", str(table_folder), "--policy", str(policy)]
    assert replay_cli.main([*arguments, "--json", str(report)]) == 0
    [row] = read_json(report)["rows"]
    assert row["n"] == 300
    assert row["oracle_share_ci"][0] < row["oracle_share"] < row["oracle_share_ci"][1]
    assert "remain" in capsys.readouterr().out


def test_heads_own_policy_can_be_evaluated(
    table_folder: Path, head_folder: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    settings = [f"table={table_folder}", f"head={head_folder}", "epsilon=0.02"]
    calibrate.main(settings)
    arguments = ["eval", "--table", str(table_folder), "--policy", str(head_folder)]
    assert replay_cli.main([*arguments, "--json", str(report)]) == 0
    [row] = read_json(report)["rows"]
    assert row["policy"] == load_metadata(head_folder).policy.model_dump(mode="json")
    metadata = load_metadata(head_folder)
    assert metadata.calibration is not None
    assert row["oracle_share"] == metadata.calibration["test"]["oracle_share"]


def test_unknown_policy_key_is_an_error(table_folder: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("treshold: 3\n")
    with pytest.raises(ConfigError, match=r"treshold: unknown key; known keys: .*thresholds"):
        replay_cli.main(["eval", "--table", str(table_folder), "--policy", str(policy)])


def test_questions_that_failed_count_as_losses(table_folder: Path, tmp_path: Path) -> None:
    """A table without its failed questions would promise more than was seen."""
    table = ReplayTable.load(table_folder)
    clean = calibrate.run(table, calibrate.CalibrateSettings(table="", epsilon=0.02))
    skipped = {"calibration": {"engine_error": 3, "no thinking": 9}, "test": {"engine_error": 9}}
    source = {**table.source, "skipped": skipped}
    counted = calibrate.run(
        replace(table, source=source), calibrate.CalibrateSettings(table="", epsilon=0.02)
    )
    assert (clean["n"], counted["n"]) == (600, 603)
    assert counted["certificate"]["skipped"] == 3
    assert counted["certificate"]["losses"] >= 3
    assert counted["certificate"]["upper_bound"] > clean["certificate"]["upper_bound"]
    skipped["calibration"]["engine_error"] = 40  # more than could be promised about
    none = calibrate.run(
        replace(table, source=source), calibrate.CalibrateSettings(table="", epsilon=0.02)
    )
    assert not none["certificate"]["exits"]
