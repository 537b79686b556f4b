"""What all tests share: where the real traces lie, the built-in reasoner, its tokenizer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specexit.engine_env import own_core, prepare_in_process_engine

prepare_in_process_engine()  # before any test module imports vllm
os.environ["NUMBA_NUM_THREADS"] = "1"  # n-gram drafts use no more, but a second one would spin on
if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # the engines of each worker on its own core
    place, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.update(own_core(place, count))

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Folder of real reasoning traces; the test skips where there is none."""
    folder = Path(os.environ.get("SPECEXIT_TRACES", ROOT.parent / "shared" / "data" / "traces"))
    if not folder.is_dir():
        pytest.skip("real traces are not on this machine (set SPECEXIT_TRACES to their folder)")
    return folder


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    """Folder of the built-in reasoner."""
    from specexit.tiny import model_path

    return Path(model_path())


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_path: Path) -> Any:
    """Tokenizer of the built-in reasoner."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tiny_path))
