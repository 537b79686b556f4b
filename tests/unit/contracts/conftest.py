"""The real outputs, where they are at hand."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """The folder of real outputs, which is not part of the repository."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
    folder = Path(os.environ.get("SPECEXIT_TRACES", beside))
    if not folder.is_dir():
        pytest.skip(f"no real traces at {folder} (set SPECEXIT_TRACES)")
    return folder


@pytest.fixture(scope="session")
def records(traces_dir: Path) -> Callable[[str], list[dict[str, Any]]]:
    def load(name: str) -> list[dict[str, Any]]:
        with gzip.open(traces_dir / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return load
