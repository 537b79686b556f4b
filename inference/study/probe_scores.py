"""Scores of the trained probe baselines on a replay table: fit on training traces, apply."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from inference.study.baselines import Scores
from inference.study.bench_rows import Scored
from inference.study.probes import AttentionProbe, Example, SufficiencyProbe
from inference.study.record import SignalRecorder
from inference.study.replay_cli import target_folder
from specexit.dataset import Trace, read_traces
from specexit.replay import ReplayTable

if TYPE_CHECKING:
    from inference.study.bench import BenchSettings


def probe_scores(
    settings: BenchSettings, calibration: ReplayTable, test: ReplayTable, *, quiet: bool
) -> list[Scored]:
    """(name, source, probes, scores on calibration, scores on test) of both probes."""
    head = next(iter(settings.heads.values()))
    recorder = SignalRecorder(target_folder(settings.target), head, dtype=settings.dtype)
    train = list(
        islice(
            (t for t in read_traces(settings.data, "train") if t.keep), settings.attention_traces
        )
    )
    examples = _examples(recorder, train, quiet)
    torch.manual_seed(settings.seed)
    attention = AttentionProbe(examples[0].features.shape[1])
    attention.fit(examples, seed=settings.seed, quiet=quiet)
    pointwise = SufficiencyProbe().fit(examples)
    del examples
    held_out = {}
    for table, split in ((calibration, "calibration"), (test, "test")):
        by_id = {t.id: t for t in read_traces(settings.data, split)}  # type: ignore[arg-type]
        traces = [by_id[i] for i in table.ids]
        held_out[split] = _examples(recorder, traces, quiet)

    def on(probe: SufficiencyProbe | AttentionProbe, split: str) -> Scores:
        return np.concatenate([probe.scores(e) for e in held_out[split]])

    return [
        (
            name,
            source,
            "none",
            on(probe, "calibration"),
            on(probe, "test"),
        )
        for name, source, probe in (
            ("sufficiency probe", "arXiv 2504.05419", pointwise),
            ("attention probe", "arXiv 2603.12529", attention),
        )
    ]


def _examples(recorder: SignalRecorder, traces: Sequence[Trace], quiet: bool) -> list[Example]:
    features = recorder.features(traces, quiet=quiet)
    return [Example.make(t, f) for t, f in zip(traces, features, strict=True)]
