"""Replay equals live vLLM: signals, exit boundaries and what follows, on a random target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.study.record import SignalRecorder
from inference.study.record_live import NEVER, LiveSignals, take_signals
from inference.study.systems import SCHEDULER, WORKER, System, sampling_params
from inference.study.timed import run_timed
from specexit.policy import ExitPolicy, Smoothing, Thresholds
from specexit.replay import NATURAL, Replay, ReplayTable
from specexit.split import StepSplitter
from tests.engine.chaos import END, START, VOCABULARY
from tests.unit.replay.tables import trace

PROMPTS, TOKENS = 24, 160
KINDS = ("linear", "mlp", "memory")


def prompts(n: int) -> list[list[int]]:
    """Prompts that open the thinking, of several lengths."""
    random = np.random.default_rng(5)
    return [
        [*random.integers(9, len(VOCABULARY), int(random.integers(3, 12))).tolist(), START]
        for _ in range(n)
    ]


def head_engine(engine: Callable[..., Any], chaos: Path, kind: str) -> Any:
    return engine(
        str(chaos / "target"),
        worker_cls=WORKER,
        scheduler_cls=SCHEDULER,
        speculative_config={
            "method": "eagle3",
            "model": str(chaos / kind),
            "num_speculative_tokens": 3,
        },
        additional_config={"specexit": {"record": True}},
    )


def full_thinking(llm: Any, chaos: Path, kind: str) -> tuple[list[Any], list[LiveSignals]]:
    """Traces of full thinking, exits off, and what the worker recorded of them."""
    system = System("record", head=chaos / kind, exits=True, policy=NEVER)
    asked = prompts(PROMPTS)
    params = sampling_params(system, max_tokens=TOKENS)
    answered = run_timed(llm, asked, [params] * len(asked))
    recorded = take_signals(llm, [a.token_ids for a in answered])
    splitter = StepSplitter.from_texts(VOCABULARY)
    traces, live = [], []
    for i, (prompt, output) in enumerate(zip(asked, answered, strict=True)):
        ids = output.token_ids
        # cut off by max_tokens: the last token was never an input, so it has no signals
        end = ids.index(END) if END in ids else len(ids) - 1
        marks = splitter.boundaries(ids[:end], previous=START)
        made = trace(i, marks, end, [True] * len(marks))
        traces.append(
            replace(made, prompt_ids=prompt, output_ids=ids, think_start=0, think_end=end)
        )
        if END in ids:
            assert len(recorded[i].signals) == end
        # drafts that were accepted in the last step, beyond max_tokens, had signals too
        live.append(recorded[i].first(end))
    return traces, live


@pytest.mark.parametrize("kind", KINDS)
def test_offline_signals_equal_the_workers(
    engine: Callable[..., Any], chaos: Path, kind: str
) -> None:
    llm = head_engine(engine, chaos, kind)
    traces, live = full_thinking(llm, chaos, kind)
    recorder = SignalRecorder(chaos / "target", chaos / kind)
    offline = recorder.record(traces, quiet=True)
    for made, ours, theirs in zip(traces, offline, live, strict=True):
        assert len(theirs.signals) == made.think_end
        np.testing.assert_allclose(ours.signals, theirs.signals, rtol=1e-4, atol=1e-4)


def test_recorded_steps_are_the_accepted_runs(engine: Callable[..., Any], chaos: Path) -> None:
    traces, live = full_thinking(head_engine(engine, chaos, "memory"), chaos, "memory")
    lengths = []
    for made, record in zip(traces, live, strict=True):
        assert len(record.steps) == made.think_end
        assert (np.diff(record.steps) >= 0).all()
        lengths += np.bincount(record.steps).tolist()
    assert set(lengths) <= {1, 2, 3, 4}


def policies(replay: Replay) -> list[ExitPolicy]:
    """Ten policies whose thresholds lie among the signals of this table."""
    none = Smoothing(kind="none")
    quantile = {
        smoothing: np.nanquantile(replay.smoothed(smoothing), [0.3, 0.7], axis=(1, 2))
        for smoothing in (none, Smoothing(alpha=0.1), Smoothing(alpha=0.5))
    }

    def policy(smoothing: Smoothing, *signals: str, **options: Any) -> ExitPolicy:
        low, high = quantile[smoothing]
        limits = Thresholds(
            confidence=high[0] + 1e-5, progress=high[1] + 1e-5, remain=low[2] + 1e-5
        )
        return ExitPolicy(
            signals=signals,  # type: ignore[arg-type]
            thresholds=limits,
            smoothing=smoothing,
            **options,
        )

    slow, fast = Smoothing(alpha=0.1), Smoothing(alpha=0.5)
    return [
        policy(none, "remain"),
        policy(none, "confidence"),
        policy(none, "progress", patience=2),
        policy(slow, "remain"),
        policy(slow, "confidence", "remain"),
        policy(fast, "progress"),
        policy(fast, "confidence", min_boundaries=3),
        policy(none, "remain", min_think_tokens=40),
        policy(fast, "confidence", "progress", "remain"),
        policy(none, "remain", patience=3, max_think_tokens=60),
    ]


@pytest.mark.parametrize("kind", ["linear", "memory"])
def test_live_exits_fall_where_the_replay_says(
    engine: Callable[..., Any], chaos: Path, kind: str
) -> None:
    llm = head_engine(engine, chaos, kind)
    traces, live = full_thinking(llm, chaos, kind)
    table = ReplayTable.from_traces(traces, [r.signals for r in live])
    replay = Replay(table)
    tried = policies(replay)
    exits = replay.exits(tried)
    exited = 0
    for p, policy in enumerate(tried):
        system = System(
            "live", head=chaos / kind, exits=True, policy=policy.model_dump(mode="json")
        )
        params = sampling_params(system, max_tokens=TOKENS)
        found = run_timed(llm, [t.prompt_ids for t in traces], [params] * len(traces))
        for i, (made, answered) in enumerate(zip(traces, found, strict=True)):
            tokens = int(exits.tokens[p, i])
            if exits.boundary[p, i] == NATURAL:
                assert answered.token_ids[:tokens] == made.output_ids[:tokens]
                continue
            exited += 1
            assert answered.token_ids[:tokens] == made.output_ids[:tokens]
            assert answered.token_ids[tokens : tokens + 1] == [END]
            assert answered.record is not None
            assert answered.record["boundary"] == exits.boundary[p, i] or (not exits.is_exact[p, i])
    assert exited > len(tried) * PROMPTS / 4
    llm.llm_engine.collective_rpc("specexit_take_records")  # leave nothing behind
