"""Held-out figures of a trained head: drafts by teacher forcing, signals at thinking tokens."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from specexit.checkpoint import (
    check_target,
    has_signals,
    load_metadata,
    load_signal_head,
    target_facts,
)
from specexit.dataset import Split, Trace, read_traces
from specexit.errors import ConfigError
from specexit.heads.draft import Draft, load_draft
from specexit.heads.signal import SignalHead, activate
from training.batch import collate
from training.draft import Source, bind_target, thinking_inputs
from training.examples import Example, Thinking, make_examples
from training.features import OnlineTarget, resolve_target
from training.memory import compute_features
from training.metrics import Array, auc, bootstrap, calibration_curve, r2, ridge_scores
from training.unroll import shift, unroll

log = logging.getLogger(__name__)
_PROBE_TRACES = 400


@dataclass
class SignalTable:
    """One trace's signals, by thinking token and by boundary.

    Attributes:
        tokens: `[T, 6]`: predicted and labelled confidence, progress, log1p(remain).
        boundaries: `[K, 7]`: sufficient, the three predicted signals (remain as log1p), position,
            whether the derivation ends here, ridge score (NaN until it is filled in).
        features: `[K, F]` at the boundaries.
    """

    tokens: Array
    boundaries: Array
    features: Array


def evaluate_head(
    folder: str | Path,
    data: str | Path,
    *,
    target: str = "tiny",
    split: Split = "test",
    k: int = 3,
    limit: int | None = None,
    device: torch.device | str = "cpu",
    progress: bool = True,
) -> dict[str, Any]:
    """Figures of the head in `folder` on a split of `data`, with 95 % intervals over traces.

    Returns:
        JSON-able: acceptance_length, acceptance_by_position, and, where the head has signals,
        r2_progress, r2_log_remain, mae_confidence, auc_boundary (by `remain`),
        auc_boundary_by_signal, auc_derivation_end, position_auc_boundary,
        ridge_probe_auc_boundary, calibration, n, intervals.

    Raises:
        ConfigError: the split is empty.
        CheckpointError: the head belongs to another target.
    """
    path = resolve_target(target)
    draft = load_draft(folder)
    signals: SignalHead | None = None
    if has_signals(folder):
        metadata = load_metadata(folder)
        check_target(metadata, target_facts(path))
        signals, _ = load_signal_head(folder, any_source=True)
    traces = list(read_traces(data, split, kept_only=True))[:limit]
    if not traces:
        raise ConfigError(f"data: {data} has no kept trace in split {split}")
    dtype = torch.float32 if torch.device(device).type == "cpu" else None
    model = OnlineTarget(path, draft.config.aux_layer_ids, dtype=dtype, device=device)
    bind_target(draft.to(device), model)
    examples = _examples(traces)
    kept = compute_features(model, examples, device=device, progress=progress)
    features = [draft.select(*states).to(device) for states in kept]
    accepted = _accepted(draft, examples, features, k, progress)
    result: dict[str, Any] = {"split": split, "n": {"traces": len(traces)}, "intervals": {}}
    _acceptance(result, accepted, k)
    if signals is not None:
        tables = [
            _table(draft, signals, metadata.signal_source, e, f, t)
            for e, f, t in zip(examples, features, traces, strict=True)
        ]
        _probe(model, draft, metadata.signal_source, data, tables, device, progress)
        _signal_figures(result, tables)
        result["kind"] = signals.kind
    return _finite(result)


def _finite(value: Any) -> Any:
    """Numbers that are not finite become None: JSON has no name for them."""
    if isinstance(value, dict):
        return {name: _finite(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _examples(traces: list[Trace]) -> list[Example]:
    return make_examples(
        traces, span="full", confidence="confidence", keep_redundant=True, think_end_ids=()
    )


# -- drafts -------------------------------------------------------------------------------------


@torch.no_grad()
def _accepted(
    draft: Draft, examples: list[Example], features: list[Tensor], k: int, progress: bool
) -> list[Tensor]:
    """`[steps]` of each trace: drafts accepted in each verification step of greedy decoding.

    Every row's drafts are made with true earlier drafts as inputs, which is what the engine has
    as long as they are accepted; then the walk over rows is the engine's.
    """
    counts = []
    bar = zip(examples, features, strict=True)
    for example, f in tqdm(bar, total=len(examples), desc="drafts", disable=not progress):
        batch = collate([example], [[0]], boundary_weight=1, boundaries_only=True).to(f.device)
        states = f.to(draft.fc.weight.dtype)[None]
        hidden = draft.fc(draft.inputs(states, shift(batch.ids, 1), batch.positions))
        alive = torch.ones_like(batch.ids, dtype=torch.bool)
        run = torch.zeros_like(batch.ids)
        outs = unroll(draft, hidden, batch.ids, batch.positions, batch.document, k)
        for step, out in enumerate(outs):
            drafted = draft.to_target_ids(draft.logits(out).argmax(-1))
            alive = alive & (drafted == shift(batch.ids, step + 2, -1))
            run += alive
        rows = run[0].tolist()
        n, row = len(example), int(example.is_target.nonzero()[0]) - 1
        walk = []
        while row + 2 < n:  # a draft of the token after the newest one is of use
            accepted = min(rows[row], n - 2 - row)
            walk.append(accepted)
            row += accepted + 1
        counts.append(torch.tensor(walk))
    return counts


def _acceptance(result: dict[str, Any], accepted: list[Tensor], k: int) -> None:
    columns = [np.stack([a.numpy() + 1.0], 1) for a in accepted if len(a)]
    every = np.concatenate(columns)[:, 0]
    result["acceptance_length"] = float(every.mean())
    reached = [float((every > i).mean()) for i in range(k + 1)]
    # chance that position i is accepted, given that all before it were
    result["acceptance_by_position"] = [
        reached[i + 1] / reached[i] if reached[i] else float("nan") for i in range(k)
    ]
    result["k"] = k
    result["n"]["steps"] = len(every)
    result["intervals"]["acceptance_length"] = bootstrap(columns, lambda x: float(x.mean()))


# -- signals ------------------------------------------------------------------------------------


@torch.no_grad()
def _table(
    draft: Draft,
    signals: SignalHead,
    source: Source,
    example: Example,
    features: Tensor,
    trace: Trace,
) -> SignalTable:
    thinking = example.thinking
    assert thinking is not None
    T = len(thinking.labels)
    read = thinking_inputs(draft, features.float(), example.ids, thinking, source)
    z = signals.project(read)
    predicted = activate(signals.forward(z[None], thinking.boundary[None])[0])
    predicted = torch.stack([*predicted[:, :2].unbind(1), predicted[:, 2].log1p()], 1)
    wanted = thinking.labels.clone()
    wanted[:, 2] = wanted[:, 2].log1p()
    tokens = torch.cat([predicted, wanted], 1).double().numpy()
    ends = thinking.boundary.nonzero().flatten()
    k_star = trace.k_star if trace.k_star is not None else len(trace.boundaries)
    numbers = [j for j, b in enumerate(trace.boundaries) if 0 < b <= T]
    sufficient = np.array([float(j >= k_star) for j in numbers])
    end = derivation_end(trace)
    at_end = np.array([float(j == end) for j in numbers])
    at = predicted[ends].double().numpy()
    blank = np.full(len(numbers), np.nan)
    rows = np.column_stack(
        [sufficient, at, np.array([float(b) for b in (ends + 1).tolist()]), at_end, blank]
    )
    return SignalTable(tokens, rows, read[ends].double().numpy())


def derivation_end(trace: Trace) -> int | None:
    """Boundary at which the first derivation ends, right or wrong; None where it is unknown.

    From `first_pass_end` in the trace's meta where the data have it (the built-in reasoner's);
    otherwise the first boundary whose trial answer is also the next one's.
    """
    known = json.loads(trace.meta or "{}").get("first_pass_end")
    if isinstance(known, int):
        return known
    answers = trace.trial_answers
    for j in range(1, len(answers) - 1):
        if answers[j] is not None and answers[j] == answers[j + 1]:
            return j
    return None


def _probe(
    model: OnlineTarget,
    draft: Draft,
    source: Source,
    data: str | Path,
    tables: list[SignalTable],
    device: torch.device | str,
    progress: bool,
) -> None:
    """Fill in the ridge score: a linear probe of the same features, fitted on training traces."""
    traces = list(read_traces(data, "train", kept_only=True))[:_PROBE_TRACES]
    if len(traces) < 2:
        return
    examples = _examples(traces)
    kept = compute_features(model, examples, device=device, progress=progress)
    xs, ys = [], []
    for example, states, trace in zip(examples, kept, traces, strict=True):
        thinking = example.thinking
        assert isinstance(thinking, Thinking)
        ends = thinking.boundary.nonzero().flatten()
        T = len(thinking.labels)
        f = draft.select(*states).float().to(device)
        with torch.no_grad():
            read = thinking_inputs(draft, f, example.ids, thinking, source)
        xs.append(read[ends.to(read.device)].double().cpu().numpy())
        k_star = trace.k_star if trace.k_star is not None else len(trace.boundaries)
        ys.append(
            np.array([float(j >= k_star) for j, b in enumerate(trace.boundaries) if 0 < b <= T])
        )
    every = [t.features for t in tables]
    scores = ridge_scores(np.concatenate(xs), np.concatenate(ys), np.concatenate(every))
    begin = 0
    for table in tables:
        n = len(table.boundaries)
        table.boundaries[:, 6] = scores[begin : begin + n]
        begin += n


def _signal_figures(result: dict[str, Any], tables: list[SignalTable]) -> None:
    tokens = [t.tokens for t in tables]
    rows = [t.boundaries for t in tables if len(t.boundaries)]
    ends = [r[r[:, 5] > 0] for r in rows]
    ends = [r for r in ends if len(r)]
    result["n"]["thinking_tokens"] = int(sum(map(len, tokens)))
    result["n"]["boundaries"] = int(sum(map(len, rows)))
    result["n"]["derivation_ends"] = int(sum(map(len, ends)))
    result["n"]["insufficient_derivation_ends"] = int(sum((r[:, 0] == 0).sum() for r in ends))

    def both(name: str, values: list[Array], statistic: Any) -> None:
        if not values:
            result[name] = None
            return
        found = float(statistic(*np.concatenate(values).T))
        result[name] = found if np.isfinite(found) else None
        result["intervals"][name] = bootstrap(values, statistic)

    def at_boundaries(column: int, sign: float = 1.0) -> Any:
        return lambda *c: auc(sign * c[column], c[0] > 0.5)

    # at boundaries: there the signals are read, and there the memory head speaks
    flagged = [
        t.tokens[np.isin(np.arange(len(t.tokens)), t.boundaries[:, 4].astype(int) - 1)]
        for t in tables
    ]
    flagged = [f for f in flagged if len(f)]
    both("r2_progress", flagged, lambda *c: r2(c[1], c[4]))
    both("r2_log_remain", flagged, lambda *c: r2(c[2], c[5]))
    both("mae_confidence", flagged, lambda *c: float(np.abs(c[0] - c[3]).mean()))
    both("auc_boundary", rows, at_boundaries(3, -1.0))
    both("auc_derivation_end", ends, at_boundaries(3, -1.0))
    both("position_auc_boundary", rows, at_boundaries(4))
    both("position_auc_derivation_end", ends, at_boundaries(4))
    both("ridge_probe_auc_boundary", rows, at_boundaries(6))
    both("ridge_probe_auc_derivation_end", ends, at_boundaries(6))
    every = np.concatenate(rows)
    result["auc_boundary_by_signal"] = {
        name: auc(sign * every[:, column], every[:, 0] > 0.5)
        for name, column, sign in (
            ("confidence", 1, 1.0),
            ("progress", 2, 1.0),
            ("remain", 3, -1.0),
        )
    }
    flat = np.concatenate(flagged)
    result["calibration"] = {
        "confidence": calibration_curve(flat[:, 0], flat[:, 3]),
        "progress": calibration_curve(flat[:, 1], flat[:, 4]),
    }
    all_tokens = np.concatenate(tokens)
    result["all_tokens"] = {
        "r2_progress": r2(all_tokens[:, 1], all_tokens[:, 4]),
        "r2_log_remain": r2(all_tokens[:, 2], all_tokens[:, 5]),
        "mae_confidence": float(np.abs(all_tokens[:, 0] - all_tokens[:, 3]).mean()),
    }
