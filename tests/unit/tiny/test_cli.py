from __future__ import annotations

import json
from pathlib import Path

import pytest

from specexit.cli import main
from specexit.tiny import questions


def test_questions_writes_the_records_as_json_lines(tmp_path: Path) -> None:
    out = tmp_path / "q.jsonl"
    argv = ["tiny", "questions", "--split", "shifted", "--n", "7", "--seed", "3", "--out", str(out)]
    assert main(argv) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == questions("shifted", 7, 3)


def test_path_prints_a_folder_with_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny", "path"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "model.safetensors").is_file()


def test_wrong_settings_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tiny", "train", "--out", str(tmp_path / "m"), "--steps", "0"]) == 2
    assert "steps: 0 is not a positive number" in capsys.readouterr().err
    assert main(["tiny", "questions", "--n", "-2", "--out", str(tmp_path / "q")]) == 2
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stop:
        main(["tiny", "questions", "--split", "exam", "--out", str(tmp_path / "q")])
    assert stop.value.code == 2


def test_evaluating_a_folder_without_a_model_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tiny", "eval", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "questions", "eval", "path"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tiny", command, "--help"])
    assert stop.value.code == 0
    assert "usage: specexit tiny" in capsys.readouterr().out
