"""Killed builds: the journal, random moments, the same bytes in the end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from data_build.config import DataSettings
from data_build.engine import Completion, Request
from data_build.journal import Journal, JournalledEngine
from data_build.run import run
from specexit.dataset import read_traces

from .scripted import ScriptedServer, question

Make = Callable[..., DataSettings]
Write = Callable[..., Path]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted((folder / "data").glob("*.parquet"))}


def run_and_kill(settings: DataSettings, out: Path, after_s: float) -> bool:
    """Run in a child process and kill it with SIGKILL; whether it was still running."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(settings, str(out), progress=False)
            code = 0
        finally:
            os._exit(code)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("seed", range(2))
def test_a_build_killed_at_random_moments_ends_with_the_same_bytes(
    seed: int, server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    texts = [question(i) + (" slip" if i % 4 == 3 else "") for i in range(40)]
    settings = settings_of(write_questions(texts), [server.url], engine={"concurrency": 3})
    whole = run(settings, str(tmp_path / "whole"), progress=False)
    server.delay_s = 0.01
    rng = random.Random(seed)
    kills = 0
    for _ in range(40):
        kills += run_and_kill(settings, tmp_path / "out", rng.uniform(0.05, 0.6))
        if len(bytes_of(tmp_path / "out")) >= 4:
            break
    assert kills >= 2
    server.delay_s = 0.0
    stats = run(settings, str(tmp_path / "out"), progress=False)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    assert stats == whole
    ids = [t.id for t in read_traces(tmp_path / "out")]
    assert ids == [f"q{i}" for i in range(40)]
    leftovers = [f.name for f in (tmp_path / "out").rglob("*") if f.suffix in (".tmp", ".jsonl")]
    assert leftovers == []


def test_a_torn_last_line_is_cut_off_and_failures_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    good = Completion([1, 2], [-0.5, -0.25], "stop", 16)
    with Journal(path) as journal:
        journal.add([("0/full", good), ("1/full", Completion([], [], "error", error="HTTP 500"))])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key":"2/full","token_ids":[1')
    with Journal(path) as journal:
        assert journal.known == {"0/full": good}
        journal.add([("3/1", good)])
    with Journal(path) as journal:
        assert list(journal.known) == ["0/full", "3/1"]


@pytest.mark.parametrize("rubbish", [b"\x00\xff\n", b"[]\n", b'{"key":1}\n', b'{"a":2}\n'])
def test_rubbish_in_a_journal_is_no_completion(tmp_path: Path, rubbish: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(rubbish)
    with Journal(path) as journal:
        assert journal.known == {}


class _Counting:
    """An engine that answers everything and remembers what it was asked."""

    capacity, exact_replay, max_model_len = 4, False, 100

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self._open: list[Request] = []

    def submit(self, request: Request) -> None:
        self.asked.append(request)
        self._open.append(request)

    def collect(self) -> list[tuple[str, Completion]]:
        done, self._open = self._open, []
        return [(r.key, Completion(r.prompt_ids, [0.0], "stop")) for r in done]

    def counters(self) -> dict[str, float]:
        return {}

    def forget(self) -> None: ...

    def close(self) -> None: ...


def test_a_journal_answers_only_the_prompt_that_it_was_written_for(tmp_path: Path) -> None:
    """The questions' file may have gained a line at its top before the run goes on."""
    found = []
    for prompt in ([1, 2], [1, 2], [1, 3]):
        engine = _Counting()
        with Journal(tmp_path / "journal.jsonl") as journal:
            journalled = JournalledEngine(engine, journal)
            journalled.submit(Request("0/full", prompt, max_tokens=4))
            [(key, completion)] = journalled.collect()
        assert (key, completion.token_ids) == ("0/full", prompt)
        found.append(len(engine.asked))
    assert found == [1, 0, 1]
