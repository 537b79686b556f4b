"""Figures of a dataset folder, streamed from its shards and batch summaries."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_build.folder import RunFolder
from data_build.rows import Cost
from specexit.dataset import Trace, data_hash, read_traces
from specexit.files import read_json

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass
class Tally:
    """Running counts over the traces; its size does not grow with them but for three numbers a
    kept trace (thinking tokens, t_star, first sufficient boundary's tokens)."""

    traces: int = 0
    drop_reasons: Counter[str] = field(default_factory=Counter)
    splits: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    searches: Counter[str] = field(default_factory=Counter)
    thinking: list[int] = field(default_factory=list)
    t_star: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    boundaries: int = 0
    probed: int = 0
    graded: int = 0
    correct: int = 0
    correct_at_k_star: int = 0
    agreement: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    """Boundary: [probed, agreed]."""

    def add(self, trace: Trace) -> None:
        """Count one trace."""
        self.traces += 1
        split = self.splits[trace.split]
        split["traces"] += 1
        self.searches[trace.search or "none"] += 1
        if trace.drop_reason:
            self.drop_reasons[trace.drop_reason] += 1
        self.boundaries += len(trace.boundaries)
        self.probed += sum(trace.probed)
        for k, (probed, agrees) in enumerate(zip(trace.probed, trace.trial_agrees, strict=True)):
            if probed:
                self.agreement[k][0] += 1
                self.agreement[k][1] += agrees
        if trace.correct is not None:
            self.graded += 1
            self.correct += trace.correct
        if trace.k_star is None or trace.t_star is None or not trace.keep:
            return
        split["kept"] += 1
        self.thinking.append(trace.think_end - trace.think_start)
        self.t_star.append(trace.t_star)
        first = next(k for k, agrees in enumerate(trace.trial_agrees) if agrees)
        self.first.append(trace.boundaries[first])
        self.correct_at_k_star += bool(trace.trial_correct[trace.k_star])


def tally(folder: str | Path) -> Tally:
    """Count all traces of a folder."""
    result = Tally()
    for trace in read_traces(folder):
        result.add(trace)
    return result


def statistics(folder: RunFolder, counts: Tally) -> dict[str, Any]:
    """The contents of `stats.json`.

    `probe_tokens_computed` comes from the engine's own counters where it has some (prompt tokens
    that were not in the prefix cache, plus generated tokens, minus those of the full outputs),
    else from the sizes of its responses.
    """
    cost, engine = Cost(), Counter[str]()
    several = 0
    for summary in folder.summaries():
        cost.add(Cost(**summary["cost"]))
        engine.update(summary["engine"])
        several += summary["several_thinks"]
    computed = float(cost.probe_tokens_computed)
    if engine:
        total = engine["prompt_tokens"] - engine["prompt_tokens_cached"]
        total += engine["generation_tokens"]
        computed = total - cost.trace_tokens
        computed -= cost.trace_prompt_tokens - cost.trace_cached_tokens
    dropped = _read(folder.state / "input.json").get("dropped", {})
    kept = len(counts.t_star)
    thinking, t_star = np.array(counts.thinking or [0]), np.array(counts.t_star or [0])
    share = t_star / np.maximum(thinking, 1)
    return {
        "traces": counts.traces,
        "kept": kept,
        "drop_reasons": dict(sorted(counts.drop_reasons.items())),
        "questions_dropped": dropped,
        "trace_tokens": cost.trace_tokens,
        "probe_tokens_computed": int(computed),
        "probe_cost_ratio": _ratio(computed, cost.trace_tokens),
        "all_boundaries_without_reuse": {
            "tokens": int(cost.no_reuse_tokens),
            "cost_ratio": _ratio(cost.no_reuse_tokens, cost.trace_tokens),
        },
        "cache_hit_rate": _ratio(cost.probe_cached_tokens, cost.probe_prompt_tokens),
        "probes": cost.probes,
        "probes_per_trace": _ratio(cost.probes, counts.traces),
        "boundaries": counts.boundaries,
        "boundaries_probed": counts.probed,
        "cost": {k: int(v) for k, v in vars(cost).items()},
        "engine_counters": {k: int(v) for k, v in sorted(engine.items())},
        "splits": {k: dict(v) for k, v in sorted(counts.splits.items())},
        "searches": dict(sorted(counts.searches.items())),
        "several_thinks": several,
        "thinking_tokens_mean": float(thinking.mean()),
        "t_star_mean": float(t_star.mean()),
        "first_sufficient_tokens_mean": float(np.mean(counts.first or [0])),
        "t_star_share_mean": float(share.mean()),
        "t_star_share_quantiles": {str(q): float(np.quantile(share, q)) for q in QUANTILES},
        "oracle_thinking_ratio": _ratio(int(t_star.sum()), int(thinking.sum())),
        "graded": counts.graded,
        "accuracy": _ratio(counts.correct, counts.graded),
        "accuracy_at_k_star_of_kept": _ratio(counts.correct_at_k_star, kept)
        if counts.graded
        else None,
        "agreement_by_boundary": {str(k): v for k, v in sorted(counts.agreement.items())[:64]},
        "data_hash": data_hash(folder.path) if folder.finished() else None,
    }


def _ratio(a: float, b: float) -> float | None:
    return round(a / b, 6) if b else None


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(read_json(file))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
