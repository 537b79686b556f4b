"""The command line: every command's help reads, and wrong usage is told apart from failure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specexit import __version__
from specexit.cli import COMMANDS, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name, (_, text) in COMMANDS.items():
        assert name in printed
        assert text in printed


def test_no_command_is_wrong_usage() -> None:
    assert main([]) == 2


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "'trian' is not a command" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([command, "--help"])
    except SystemExit as stop:  # argparse exits by itself
        code = int(stop.code or 0)
    assert code == 0
    assert f"specexit {command}" in capsys.readouterr().out


def test_a_wrong_setting_exits_with_2_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "test_question=5"]) == 2
    assert "test_question: unknown key" in capsys.readouterr().err


def test_importing_specexit_loads_no_engine_and_no_torch() -> None:
    code = (
        "import sys, specexit; print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
