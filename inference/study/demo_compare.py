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
from inference.study.demo_rows import fixed_budget, oracle_row, position_row
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

NO_DRAFTER, EAGLE3, BUDGET = "no drafter", "EAGLE3", "EAGLE3, fixed budget"
SPECEXIT, SPECEXIT_ACE, LINEAR = "SpecExit", "SpecExit + ACE", "SpecExit (linear head)"
TIMED = (NO_DRAFTER, EAGLE3, SPECEXIT, SPECEXIT_ACE)
BATCH = 128  # of the accuracy runs


def compare(
    places: Places, settings: DemoSettings, *, quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run all systems interleaved; the results and an example trace, JSON-able."""
    log.info("5/5 compare, on %d held-out questions", settings.test_questions)
    traces = list(read_traces(places.data, "test"))[: settings.test_questions]
    questions = [Question.from_trace(t) for t in traces]
    metadata = load_metadata(places.head)
    contract = questions[0].contract
    table = ReplayTable.load(places.table(places.head))
    budget = fixed_budget(table, settings.epsilon)
    systems = [
        System(NO_DRAFTER),
        System(EAGLE3, head=places.head),
        System(BUDGET, head=places.head, arguments={"thinking_token_budget": budget}),
        System(LINEAR, head=places.linear, exits=True),
        System(SPECEXIT, head=places.head, exits=True),
        System(SPECEXIT_ACE, head=places.head, exits=True, contract=contract),
    ]
    runs = answer_all(places.target, settings, systems, questions, quiet)
    alone, batched = time_some(places.target, settings, systems, questions, quiet)
    lines = answer_lines(questions, runs, metadata.think)
    write_text(places.out / "answers.jsonl", "\n".join(lines) + "\n")
    full = runs[NO_DRAFTER]
    rows = [
        make_row(s.name, questions, runs[s.name], full, metadata.think, settings.seed)
        | (latency_columns(alone[s.name], batched[s.name]) if s.name in TIMED else {})
        for s in systems
    ]
    rows.append(position_row(table, settings.epsilon, settings.seed))
    rows.append(oracle_row(traces, settings.seed))
    results = {
        "meta": {
            "title": "SpecExit on the built-in reasoner",
            "n": len(questions),
            "seed": settings.seed,
            "settings": settings.model_dump(),
            "fixed_budget": budget,
            "policy": metadata.policy.model_dump(mode="json"),
            "calibration": metadata.calibration or {},
            "head": metadata.metrics,
            "versions": versions(),
        },
        "rows": rows,
    }
    example = make_example(table, traces, runs[SPECEXIT_ACE], metadata, places.target)
    return results, example


def answer_all(
    target: Path,
    settings: DemoSettings,
    systems: Sequence[System],
    questions: Sequence[Question],
    quiet: bool,
) -> Runs:
    """All questions through all systems, in `settings.processes` processes of a core each."""
    count = min(settings.processes, len(questions))
    bounds = [len(questions) * i // count for i in range(count + 1)]
    pools = [
        ProcessPoolExecutor(1, get_context("spawn"), os.environ.update, (own_core(i, count),))
        for i in range(count)
    ]
    shares = [
        pool.submit(
            run_systems,
            target,
            settings,
            systems,
            questions[bounds[i] : bounds[i + 1]],
            batch_size=BATCH,
            label=f"accuracy, batches of {BATCH}",
            quiet=quiet or i > 0,  # the first one's bar stands for all
        )
        for i, pool in enumerate(pools)
    ]
    runs: Runs = {system.name: [] for system in systems}
    try:
        for share in shares:
            for name, answered in share.result().items():
                runs[name] += answered
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
    return runs


def time_some(
    target: Path,
    settings: DemoSettings,
    systems: Sequence[System],
    questions: Sequence[Question],
    quiet: bool,
) -> tuple[Runs, Runs]:
    """The first questions one by one, and in batches of 8, interleaved in this process."""
    timed = [system for system in systems if system.name in TIMED]
    engines = _engines(target, settings)
    pairs = (settings.latency_questions, 1), (settings.batch_latency_questions, 8)
    alone, batched = (
        run_interleaved(
            engines,
            timed,
            questions[:n],
            batch_size=size,
            max_tokens=settings.max_tokens,
            quiet=quiet,
            label=f"latency, batches of {size}",
        )
        for n, size in pairs
    )
    engines.close()
    return alone, batched


def run_systems(
    target: Path,
    settings: DemoSettings,
    systems: Sequence[System],
    questions: Sequence[Question],
    *,
    batch_size: int,
    label: str,
    quiet: bool,
) -> Runs:
    """Some questions through all systems, interleaved in this process."""
    engines = _engines(target, settings)
    runs = run_interleaved(
        engines,
        systems,
        questions,
        batch_size=batch_size,
        max_tokens=settings.max_tokens,
        quiet=quiet,
        label=label,
    )
    engines.close()
    return runs


def _engines(target: Path, settings: DemoSettings) -> Engines:
    return Engines(
        target,
        num_speculative_tokens=settings.num_speculative_tokens,
        max_num_seqs=BATCH,
        dtype=settings.dtype,
        seed=settings.seed,
    )
