"""Existing outputs: JSON lines (plain or gzipped) with the text, and what is known of it.

Read keys: `output` (or `text`); or `deltas`, a list of `[text, seconds]` as they streamed.
Optional: `id`, `model`, `task`, `kind`, `gold`, `join` (how the text was put together).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specexit.errors import ConfigError


@dataclass(frozen=True)
class Record:
    """One output; `deltas` are its timed pieces, where known."""

    text: str
    id: str = ""
    model: str = ""
    task: str = ""
    kind: str = ""
    gold: Any = None
    join: str = ""
    deltas: list[tuple[str, float]] = field(default_factory=list)

    def thinking(self, think_start: str, think_end: str) -> bool | str:
        """How to read the thinking, judging by the whole text.

        Off line we can look: with a tag, `"auto"`. Without, a text that says it was cut off inside
        its thinking is all thinking, and any other has none.
        """
        if think_start in self.text or think_end in self.text:
            return "auto"
        return self.join.startswith("composed_truncated")


def read_records(path: str | Path) -> Iterator[Record]:
    """The records of a file that have an output; errors name the line and the key."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"FILE: no such file: {path}")
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                raw = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not JSON: {error}") from None
            record = _record(raw, f"{path}:{number}")
            if record is not None:
                yield record


def _record(raw: Any, where: str) -> Record | None:
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: not an object")
    deltas = raw.get("deltas") or []
    try:
        deltas = [(str(text), float(seconds)) for text, seconds in deltas]
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: deltas: not a list of [text, seconds]") from None
    text = raw.get("output", raw.get("text"))
    if text is None and deltas:
        text = "".join(piece for piece, _ in deltas)
    if not isinstance(text, str):
        return None
    if deltas and "".join(piece for piece, _ in deltas) != text:
        raise ConfigError(f"{where}: deltas: do not add up to the output")
    named = {key: str(raw.get(key) or "") for key in ("id", "model", "task", "kind", "join")}
    return Record(text=text, gold=raw.get("gold"), deltas=deltas, **named)
