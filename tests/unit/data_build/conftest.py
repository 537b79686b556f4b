"""A tokenizer on disk, a scripted server, and configurations that use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from data_build.config import DataSettings
from specexit.config import parse
from specexit.tiny import questions
from specexit.tiny.tokenizer import train_tokenizer

from .scripted import ScriptedServer, gold, question, thinking

# Pure functions on small tables: no deadline, since CI machines are shared.
hypothesis_settings.register_profile("data_build", deadline=None, max_examples=60)
hypothesis_settings.load_profile("data_build")


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer with think tags, as the built-in reasoner has."""
    texts = [q["question"] for q in questions("train", 50)]
    texts += [thinking(question(i)) + "\n\nThe answer is \\boxed{1}." for i in range(50)]
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(texts).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tokenizer_path))


@pytest.fixture
def server(tokenizer: Any) -> Iterator[ScriptedServer]:
    running = ScriptedServer(tokenizer)
    yield running
    running.stop()


@pytest.fixture
def write_questions(tmp_path: Path) -> Callable[..., Path]:
    """Write questions as JSONL; each is a text or a whole row."""

    def write(rows: list[Any], name: str = "questions.jsonl") -> Path:
        file = tmp_path / name
        whole = [
            {"id": f"q{i}", "question": row, "gold": str(gold(row))}
            if isinstance(row, str)
            else row
            for i, row in enumerate(rows)
        ]
        lines = [json.dumps(row) for row in whole]
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return file

    return write


@pytest.fixture
def settings_of(tokenizer_path: Path) -> Callable[..., DataSettings]:
    """Settings for questions in a file and endpoints; keywords win."""

    def make(file: Path, endpoints: list[str], **values: Any) -> DataSettings:
        engine = {"kind": "openai", "endpoints": endpoints, "backoff_s": 0.02, "concurrency": 8}
        engine.update(values.pop("engine", {}))
        probe = {"max_answer_tokens": 64, **values.pop("probe", {})}
        return parse(
            DataSettings,
            {
                "target": str(tokenizer_path),
                "contract": "boxed_integer",
                "questions": [{"source": "jsonl", "path": str(file)}],
                "engine": engine,
                "probe": probe,
                "sampling": {"max_tokens": 600},
                "batch_size": 8,
                **values,
            },
        )

    return make
