"""README and docs: every command exists, takes the options shown, and every Python example runs."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from specexit.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of the fenced blocks in a language."""
    return [
        (page.name, text)
        for page in PAGES
        for found, text in FENCE.findall(page.read_text())
        if found == language
    ]


def command_lines() -> list[tuple[str, str]]:
    """(page, line) of every shell command that starts with `specexit` or `make`."""
    found = []
    for page, text in blocks("bash"):
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            plain = line.partition(" #")[0].strip()
            if plain.startswith(("specexit ", "make ")):
                found.append((page, plain))
    return found


@cache
def help_of(*command: str) -> str | None:
    """What `specexit COMMAND... --help` prints, None if it is not a command."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main([*command, "--help"])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return printed.getvalue() if code == 0 else None


def test_the_docs_show_commands() -> None:
    assert len(command_lines()) >= 10


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_a_shown_command_exists_and_takes_its_options(page: str, line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets, f"{page}: no make target {words[1]}"
        return
    assert words[1] in COMMANDS, f"{page}: {line}"
    # the longest prefix of plain words that is a command with a help of its own
    text = help_of(words[1])
    assert text is not None
    if len(words) > 2 and re.fullmatch(r"[a-z-]+", words[2]):
        text = help_of(words[1], words[2]) or text
    for word in words[2:]:
        if word.startswith("--"):
            option = word.partition("=")[0]
            assert option in text, f"{page}: {line}\n{option} is not in:\n{text}"
        if word.startswith("configs/") and "*" not in word:
            assert (ROOT / word).is_file(), f"{page}: {line}: {word} does not exist"


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_a_shown_python_example_runs(page: str, text: str) -> None:
    if "# needs" in text:
        compile(text, page, "exec")
        return
    exec(compile(text, page, "exec"), {"__name__": "example"})


def test_links_inside_the_repository_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
