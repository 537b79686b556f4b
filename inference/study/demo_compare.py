"""The demo's last stage: every system live on the held-out questions, and the rows of the table."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from inference.study.compare import (
    Question,
    Runs,
    answer_lines,
    latency_columns,
    make_row,
    run_interleaved,
)
from inference.study.demo_rows import budget_row, oracle_row, policy_row, position_row
from inference.study.demo_settings import DemoSettings, Places
from inference.study.example import make_example
from inference.study.systems import Engines, System
from specexit.checkpoint import load_metadata
from specexit.dataset import read_traces
from specexit.engine_env import own_core
from specexit.files import write_text
from specexit.provenance import versions
from specexit.replay import ReplayTable

log = logging.getLogger(__name__)

NO_DRAFTER, EAGLE3, BUDGET = "no drafter", "EAGLE3", "fixed budget"
SPECEXIT, SPECEXIT_ACE, LINEAR = "SpecExit", "SpecExit + ACE", "SpecExit (linear head)"
AT_ONCE = 128  # requests in an engine during the accuracy runs


def compare(
    places: Places, settings: DemoSettings, *, quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run all systems interleaved; the results and an example trace, JSON-able."""
    log.info("5/5 compare, on %d held-out questions", settings.test_questions)
    traces = list(read_traces(places.data, "test"))[: settings.test_questions]
    questions = [Question.from_trace(t) for t in traces]
    metadata = load_metadata(places.head)
    table = ReplayTable.load(places.table(places.head))
    systems = [
        System(NO_DRAFTER),
        System(EAGLE3, head=places.head),
        System(SPECEXIT, head=places.head, exits=True),
        System(SPECEXIT_ACE, head=places.head, exits=True, ace=True),
    ]
    runs, alone, batched = run_all(places.target, settings, systems, questions, quiet)
    lines = answer_lines(questions, runs, metadata.think)
    write_text(places.out / "answers.jsonl", "\n".join(lines) + "\n")
    full = runs[NO_DRAFTER]
    rows = [
        make_row(s.name, questions, runs[s.name], full, metadata.think, settings.seed)
        | latency_columns(alone[s.name], batched[s.name])
        for s in systems
    ]
    seed, epsilon = settings.seed, settings.epsilon
    linear = ReplayTable.load(places.table(places.linear))
    rows += [
        policy_row(LINEAR, linear, load_metadata(places.linear).policy, seed),
        budget_row(BUDGET, table, epsilon, seed),
        position_row(table, epsilon, seed),
        oracle_row(traces, seed),
    ]
    results = {
        "meta": {
            "title": "SpecExit on the built-in reasoner",
            "n": len(questions),
            "seed": settings.seed,
            "settings": settings.model_dump(),
            "policy": metadata.policy.model_dump(mode="json"),
            "calibration": metadata.calibration or {},
            "head": metadata.metrics,
            "versions": versions(),
        },
        "rows": rows,
    }
    example = make_example(table, traces, runs[SPECEXIT_ACE], metadata, places.target)
    return results, example


def run_all(
    target: Path,
    settings: DemoSettings,
    systems: Sequence[System],
    questions: Sequence[Question],
    quiet: bool,
) -> tuple[Runs, Runs, Runs]:
    """All questions in batches, and the first ones timed one by one and in batches of 8.

    With two processes, each on its own core, one times single questions and answers a fifth of
    all, the other one does the rest, so that both end at about the same time. What runs beside it
    slows all timed systems alike: they are interleaved.

    Returns:
        Answers by system: all, one by one, in batches of 8.
    """
    alone = ("latency, one at a time", 1, questions[: settings.latency_questions])
    batched = ("latency, batches of 8", 8, questions[: settings.batch_latency_questions])
    label = f"accuracy, {AT_ONCE} at once"
    if settings.processes == 1:
        work = [[alone, batched, (label, len(questions), questions)]]
    else:
        first = len(questions) // 5
        work = [
            [alone, (label, first, questions[:first])],
            [batched, (label, len(questions) - first, questions[first:])],
        ]
    pools = [
        ProcessPoolExecutor(1, get_context("spawn"), _set_environment, (own_core(i, len(work)),))
        for i in range(len(work))
    ]
    try:
        futures = [
            pool.submit(run_parts, target, settings, systems, parts, quiet or i > 0)
            for i, (pool, parts) in enumerate(zip(pools, work, strict=True))
        ]
        results = [runs for future in futures for runs in future.result()]
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
    labels = [part[0] for parts in work for part in parts]
    shares = [runs for name, runs in zip(labels, results, strict=True) if name == label]
    every = {s.name: [a for runs in shares for a in runs[s.name]] for s in systems}
    return every, results[labels.index(alone[0])], results[labels.index(batched[0])]


def run_parts(
    target: Path,
    settings: DemoSettings,
    systems: Sequence[System],
    parts: Sequence[tuple[str, int, Sequence[Question]]],
    quiet: bool,
) -> list[Runs]:
    """Several parts (label, batch size, questions) one after another, systems interleaved."""
    engines = Engines(
        target,
        num_speculative_tokens=settings.num_speculative_tokens,
        max_num_seqs=AT_ONCE,
        dtype=settings.dtype,
        seed=settings.seed,
    )
    results = [
        run_interleaved(
            engines,
            systems,
            questions,
            batch_size=batch_size,
            max_tokens=settings.max_tokens,
            quiet=quiet,
            label=label,
        )
        for label, batch_size, questions in parts
    ]
    engines.close()
    return results


def _set_environment(values: dict[str, str]) -> None:
    os.environ.update(values)
