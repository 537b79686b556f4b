"""Completions of a batch that is under way, one line each, so that a killed run loses none."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from pathlib import Path
from typing import IO, Any

from data_build.engine import Completion, Engine, Request


class Journal:
    """An append-only JSONL file of completions by request name (key and prompt).

    A line counts once it is whole: a torn last line (a killed process) is cut off on opening.
    Failed completions are not journalled, so a later run tries them again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Completion] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Journal:
        good = 0
        if self.path.is_file():
            with self.path.open("rb") as lines:
                for line in lines:
                    entry = _parse(line)
                    if entry is None:
                        break
                    self.known[entry[0]] = entry[1]
                    good += len(line)
            os.truncate(self.path, good)
        self._file = self.path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, entries: list[tuple[str, Completion]]) -> None:
        """Append and hand over to the system, which keeps it when this process is killed. Not
        synced: a machine that crashes may lose the last seconds, which are then asked for again."""
        if self._file is None:
            raise AssertionError("the journal is not open")
        wrote = False
        for key, completion in entries:
            if completion.error is None:
                record = {"key": key, **vars(completion)}
                self._file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
                wrote = True
        if wrote:
            self._file.flush()


def _parse(line: bytes) -> tuple[str, Completion] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record: dict[str, Any] = json.loads(line)
        return record.pop("key"), Completion(**record)
    except (ValueError, TypeError, KeyError):
        return None


def _name(request: Request) -> str:
    """A key counts rows, so it would fit another question after a change of the questions' file."""
    prompt = hashlib.blake2b(array("q", request.prompt_ids).tobytes(), digest_size=8)
    return f"{request.key}@{prompt.hexdigest()}"


class JournalledEngine:
    """Answers from the journal where it can, else from the engine, and journals that."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal
        self._ready: list[tuple[str, Completion]] = []
        self._names: dict[str, str] = {}  # of the requests that the engine has
        self.capacity = engine.capacity
        self.exact_replay = engine.exact_replay
        self.max_model_len = engine.max_model_len

    def submit(self, request: Request) -> None:
        name = _name(request)
        found = self._journal.known.get(name)
        if found is None:
            self._names[request.key] = name
            self._engine.submit(request)
        else:
            self._ready.append((request.key, found))

    def collect(self) -> list[tuple[str, Completion]]:
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        fresh = self._engine.collect()
        self._journal.add([(self._names.pop(key), completion) for key, completion in fresh])
        return fresh

    def counters(self) -> dict[str, float]:
        return self._engine.counters()

    def forget(self) -> None:
        self._engine.forget()

    def close(self) -> None:
        self._engine.close()
