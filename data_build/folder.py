"""A dataset folder while it is built: its settings, its locks, its finished and begun batches.

    DIR/run.json             the settings that it was begun with
    DIR/data/00012.parquet   batch 12, whole or absent
    DIR/state/00012.json     its cost and counts, written just before the Parquet file
    DIR/state/00012.jsonl    journal of a batch that is under way (endpoints only)
    DIR/state/input.json     rows of the input that were dropped

A batch is finished when its Parquet file exists. Batches are numbered by their questions, so
processes that share a folder (`--shard i/n`) never write the same file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pydantic import BaseModel

from specexit.dataset import write_table
from specexit.errors import ConfigError, SpecExitError
from specexit.files import read_json, write_json

# Settings that may differ between the runs that fill one folder: they do not change the rows.
_FREE_ENGINE_KEYS = frozenset(
    {"data_parallel_size", "endpoints", "api_key_env", "concurrency", "timeout_s", "retries"}
    | {"backoff_s", "max_error_share", "send_contract"}
)


class RunFolder:
    """One dataset folder, locked while the object is open."""

    def __init__(self, path: str | Path, shard: tuple[int, int] = (0, 1)) -> None:
        self.path = Path(path)
        self.shard = shard
        self._locks: list[IO[str]] = []

    # --- locks -----------------------------------------------------------------------------

    def __enter__(self) -> RunFolder:
        self.state.mkdir(parents=True, exist_ok=True)
        (self.path / "data").mkdir(exist_ok=True)
        index, count = self.shard
        try:
            with self._entrance():
                if count == 1:
                    self._lock("run.lock", fcntl.LOCK_EX)
                else:
                    self._lock_share(index, count)
        except BaseException:
            self._unlock()
            raise
        for stale in self._leftovers():
            stale.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    @contextlib.contextmanager
    def _entrance(self) -> Iterator[None]:
        """One process at a time: nobody sees `run.lock` before its first holder shares it."""
        with (self.state / "entrance.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _lock_share(self, index: int, count: int) -> None:
        """All shards hold `run.lock` together, each its own lock alone."""
        try:
            first = self._lock("run.lock", fcntl.LOCK_EX)
        except FolderBusyError:
            shared = self._lock("run.lock", fcntl.LOCK_SH)
            found = shared.read().strip()
            if found != str(count):
                raise FolderBusyError(
                    f"--shard: {self.path} is being filled by {found or 'other'} shards now, "
                    f"not by {count}; use the same n in every job"
                ) from None
        else:
            first.truncate(0)
            first.write(str(count))
            first.flush()
            fcntl.flock(first, fcntl.LOCK_SH)
        self._lock(f"shard-{index}.lock", fcntl.LOCK_EX)

    def _lock(self, name: str, kind: int) -> IO[str]:
        path = self.state / name
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FolderBusyError(
                f"--out: another process is filling {self.path} ({name} is held); "
                "wait for it, stop it, or give another folder"
            ) from None
        self._locks.append(file)
        return file

    def _unlock(self) -> None:
        while self._locks:
            self._locks.pop().close()

    def _leftovers(self) -> Iterator[Path]:
        """Temporary files of killed runs that no other process can be writing."""
        index, count = self.shard
        if count == 1:
            yield from self.path.rglob(".*.tmp")
            return
        for folder in (self.path / "data", self.state):
            for file in folder.glob(".*.tmp"):
                number = file.name[1:].split(".")[0]
                if number.isdigit() and int(number) % count == index:
                    yield file

    # --- settings --------------------------------------------------------------------------

    def begin(self, settings: BaseModel) -> None:
        """Record the settings, or check that they are those that the folder was begun with.

        Raises:
            ConfigError: they differ; names the keys.
        """
        wanted = settings.model_dump(mode="json")
        file = self.path / "run.json"
        if file.is_file():
            found = read_json(file)
            changed = sorted(_differences(found, wanted))
            if changed:
                raise ConfigError(
                    f"--out: {self.path} was begun with other settings ({'; '.join(changed)}); "
                    "use those, or give another folder"
                )
        else:
            write_json(file, wanted)

    # --- batches ---------------------------------------------------------------------------

    @property
    def state(self) -> Path:
        """Folder of what a resumed run needs."""
        return self.path / "state"

    def owns(self, batch: int) -> bool:
        """Whether this process is to make a batch."""
        return batch % self.shard[1] == self.shard[0]

    def has(self, batch: int) -> bool:
        """Whether a batch is finished."""
        return self._shard_file(batch).is_file()

    def finished(self) -> list[int]:
        """Numbers of the finished batches."""
        return sorted(int(f.stem) for f in (self.path / "data").glob("*.parquet"))

    def journal_file(self, batch: int) -> Path:
        """Journal of a batch that is under way."""
        return self.state / f"{batch:05d}.jsonl"

    def finish(self, batch: int, table: pa.Table, summary: dict[str, Any]) -> None:
        """Make a batch appear: summary first, then the Parquet file, then drop its journal."""
        write_json(self.state / f"{batch:05d}.json", summary)
        write_table(self._shard_file(batch), table)
        self.journal_file(batch).unlink(missing_ok=True)
        self._count_file(batch).unlink(missing_ok=True)

    def note(self, batch: int, traces: int) -> None:
        """Say how far a batch is, for the progress bar of another process."""
        self._count_file(batch).write_text(str(traces))

    def noted(self) -> int:
        """Traces of the batches that are under way."""
        texts = []
        for file in self.state.glob("*.count"):
            with contextlib.suppress(FileNotFoundError):  # the batch has just been finished
                texts.append(file.read_text())
        return sum(int(text or 0) for text in texts)

    def summaries(self) -> Iterator[dict[str, Any]]:
        """Summaries of the finished batches."""
        for batch in self.finished():
            with contextlib.suppress(FileNotFoundError):  # merged from an import, say
                yield read_json(self.state / f"{batch:05d}.json")

    def _count_file(self, batch: int) -> Path:
        return self.state / f"{batch:05d}.count"

    def _shard_file(self, batch: int) -> Path:
        return self.path / "data" / f"{batch:05d}.parquet"


class FolderBusyError(SpecExitError):
    """Another process holds the folder."""


def _differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            where = f"{path}.{key}" if path else key
            if path == "engine" and key in _FREE_ENGINE_KEYS:
                continue
            yield from _differences(a.get(key), b.get(key), where)
    elif a != b:
        yield f"{path} was {a!r}, is {b!r}"
