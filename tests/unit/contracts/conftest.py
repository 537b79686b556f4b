"""The real outputs, where they are at hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def records(traces_dir: Path) -> Callable[[str], list[dict[str, Any]]]:
    def load(name: str) -> list[dict[str, Any]]:
        with gzip.open(traces_dir / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return load
