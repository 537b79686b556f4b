"""Import existing outputs: parse, split, project; a report a model. No engine.

Without a tokenizer the rows hold text (`TEXT_SCHEMA`), with one they are traces without probes.
Probing imported outputs is `specexit data build` with a source that has an output column.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import Field
from tqdm import tqdm

from data_build.answers import Answer
from data_build.build import batches, load_tokenizer
from data_build.config import Reading
from data_build.engine import Completion
from data_build.folder import RunFolder
from data_build.outputs import OutputReader
from data_build.prompts import output_ids, prompt_ids
from data_build.questions import Question, Reader
from data_build.rows import RowMaker
from data_build.think_text import TREATMENT, take_apart
from specexit.dataset import table_of
from specexit.files import write_json
from specexit.provenance import write_provenance
from specexit.split import StepSplitter
from specexit.think import ThinkFormat

DROPPING = ("no_thinking", "no_think_end", "empty_thinking", "empty_answer", "no_contract",
            "no_valid_answer")  # fmt: skip

TEXT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("model", pa.string()),
        pa.field("question", pa.string()),
        pa.field("gold", pa.string()),
        pa.field("contract", pa.string()),
        pa.field("split", pa.string()),
        pa.field("output", pa.string()),
        pa.field("think_start", pa.int32()),
        pa.field("think_end", pa.int32()),
        pa.field("boundaries", pa.list_(pa.int32())),
        pa.field("answer", pa.string()),
        pa.field("correct", pa.bool_()),
        pa.field("oddities", pa.list_(pa.string())),
        pa.field("keep", pa.bool_()),
        pa.field("drop_reason", pa.string()),
        pa.field("meta", pa.string()),
    ]
)
"""Rows of an import without a tokenizer; offsets count characters of `output`."""


class ImportSettings(Reading):
    """Settings of `specexit data import`."""

    tokenizer: str | None = None
    """Tokenizer to make token ids with; null: rows hold text."""
    grade: bool = False
    """Compare answers with gold; mathematical comparison may take seconds for odd answers."""
    batch_size: int = Field(default=1000, ge=1)
    """Rows of one Parquet file."""


def import_outputs(
    settings: ImportSettings, folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Read every record of the settings' sources and write the folder.

    Returns:
        The contents of stats.json: `traces`, `kept`, `drop_reasons`, `questions_dropped`,
        `models` (a model: records, kept, graded, correct, and a count per oddity).
    """
    reader = Reader(settings, require_contract=False)
    convert = _with_tokens(settings) if settings.tokenizer else _as_text(settings)
    folder.begin(settings)
    models: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    missing = 0
    with tqdm(unit="trace", disable=not progress, desc="import") as bar:
        for number, questions in batches(iter(reader), settings.batch_size):
            rows = []
            for question in questions:
                if question.output is None:
                    missing += 1
                    continue
                row, oddities, reason, correct = convert(question)
                rows.append(row)
                counts = models.setdefault(question.model or "unknown", Counter())
                counts.update(["records", *oddities])
                counts["kept"] += reason is None
                counts["graded"] += correct is not None
                counts["correct"] += bool(correct)
                if reason is not None:
                    reasons[reason] += 1
            if not folder.has(number):
                table = table_of(rows) if settings.tokenizer else pa.Table.from_pylist(
                    rows, schema=TEXT_SCHEMA
                )  # fmt: skip
                folder.finish(number, table, {"rows": len(rows)})
            bar.update(len(questions))
            bar.set_postfix(dropped=reasons.total(), refresh=False)
    dropped = Counter(reader.dropped)
    if missing:
        dropped["no_output"] = missing
    total: Counter[str] = Counter()
    for counts in models.values():
        total.update(counts)
    stats = {
        "traces": total["records"],
        "kept": total["kept"],
        "drop_reasons": dict(sorted(reasons.items())),
        "questions_dropped": dict(sorted(dropped.items())),
        "examples": reader.examples,
        "oddities": {name: total[name] for name in TREATMENT if total[name]},
        "treatment": TREATMENT,
        "models": {name: dict(sorted(counts.items())) for name, counts in sorted(models.items())},
    }
    write_json(folder.path / "stats.json", stats)
    write_provenance(
        folder.path,
        command="specexit data import",
        seed=None,
        config=settings.model_dump(mode="json"),
    )
    return stats


Converted = tuple[Any, tuple[str, ...], str | None, bool | None]
"""Row, oddities, drop reason, correct."""


def _as_text(settings: ImportSettings) -> Callable[[Question], Converted]:
    start_tag, end_tag = settings.think.start or "<think>", settings.think.end or "</think>"

    def convert(question: Question) -> Converted:
        text = question.output or ""
        parsed = take_apart(text, start_tag, end_tag)
        oddities = list(parsed.oddities)
        contract, answer = question.contract, None
        if contract is None:
            oddities.append("no_contract")
        elif parsed.answer.strip():
            answer = contract.project(
                end_tag + parsed.answer, thinking=True, think_start=start_tag, think_end=end_tag
            )
            if answer is None:
                oddities.append("no_valid_answer")
        reason = next((name for name in DROPPING if name in oddities), None)
        correct = None
        if settings.grade and contract is not None and question.gold is not None:
            correct = answer is not None and bool(contract.score(answer, question.gold))
        row = {
            "id": question.id,
            "model": question.model,
            "question": question.question,
            "gold": question.gold,
            "contract": None if contract is None else json.dumps(contract.spec(), sort_keys=True),
            "split": question.split,
            "output": text,
            "think_start": parsed.start,
            "think_end": parsed.end,
            "boundaries": parsed.boundaries(text),
            "answer": Answer(answer, 0, 0.0).json,
            "correct": correct,
            "oddities": oddities,
            "keep": reason is None,
            "drop_reason": reason,
            "meta": json.dumps(question.meta, sort_keys=True, ensure_ascii=False, default=str),
        }
        return row, tuple(oddities), reason, correct

    return convert


def _with_tokens(settings: ImportSettings) -> Callable[[Question], Converted]:
    tokenizer = load_tokenizer(settings.tokenizer or "")
    think = ThinkFormat.from_tokenizer(tokenizer, settings.think.start, settings.think.end)
    splitter = StepSplitter.from_tokenizer(tokenizer, mode=settings.step_split)
    reader = OutputReader(tokenizer, think, splitter)
    maker = RowMaker()

    def convert(question: Question) -> Converted:
        prompt = prompt_ids(tokenizer, question, settings)
        ids = output_ids(tokenizer, think, prompt, question.output or "")
        full = Completion(ids, [], "stop")
        parsed = reader.read(prompt, full, question.contract)
        asked = question if settings.grade else replace(question, gold=None)
        trace = replace(maker.make(asked, prompt, full, parsed), gold=question.gold)
        oddities = [] if parsed.reason is None else [parsed.reason]
        if parsed.several:
            oddities.append("several")
        return trace, tuple(oddities), parsed.reason, trace.correct

    return convert


def source_of(file: Path) -> str:
    """`parquet` or `jsonl`, by the file's name."""
    return "parquet" if file.suffix == ".parquet" else "jsonl"
