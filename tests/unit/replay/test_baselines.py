"""Baseline rules on small tables whose scores one can count by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from inference.study import baselines
from inference.study.probes import AttentionProbe, Example, SufficiencyProbe
from specexit.calibration import most_losses
from specexit.errors import ConfigError
from specexit.replay import NATURAL, Replay, ReplayTable
from tests.unit.replay.tables import known_table, trace

SIGNALS = np.full((20, 3), 0.5, np.float32)


def one(answers: list[str | None], **changes: object) -> ReplayTable:
    """One trace of 20 tokens with the given trial answers at boundaries 0, 4, 8, ..."""
    marks = list(range(0, 4 * len(answers), 4))
    made = trace(0, marks, 20, [a == "1" for a in answers])
    made = replace(made, trial_answers=answers, **changes)  # type: ignore[arg-type]
    return ReplayTable.from_traces([made], [SIGNALS])


def test_repeated_answer_counts_runs_of_equal_valid_answers() -> None:
    table = one(["7", "7", "1", None, "1"])
    scores = baselines.repeated_answer(table)
    assert np.isnan(scores[0])
    # boundary 0 is not probed, so the run begins at boundary 1
    assert scores[1:].tolist() == [1, 1, 0, 1]
    assert baselines.repeated_answer(one(["7", "7", "7", "7"]))[1:].tolist() == [1, 2, 3]


def test_deer_score_is_the_geometric_mean_probability() -> None:
    table = one(["1", "1", "1"], trial_logprob=[-3.0, -1.0, -0.1])
    assert baselines.deer(table)[1:].tolist() == pytest.approx([np.exp(-1.0), np.exp(-0.1)])


def test_entropy_after_end_is_high_once_the_entropy_stands_still() -> None:
    table = one(["1"] * 5)
    with pytest.raises(ConfigError, match="end_entropy"):
        baselines.entropy_after_end(table)
    moving = replace(table, end_entropy=np.array([2, 0.1, 2, 0.1, 2], np.float32))
    still = replace(table, end_entropy=np.array([0.3] * 5, np.float32))
    assert baselines.entropy_after_end(still)[-1] == pytest.approx(0.0, abs=1e-9)
    assert baselines.entropy_after_end(moving)[-1] < -0.3


def test_paragraph_entropy_is_the_mean_over_the_paragraph() -> None:
    table = replace(one(["1"] * 3), entropy=np.arange(20, dtype=np.float32))
    scores = baselines.paragraph_entropy(table)
    assert np.isnan(scores[0])
    assert scores[1:].tolist() == [-1.5, -5.5]


def test_fixed_budget_cuts_after_exactly_that_many_tokens() -> None:
    table = one(["0", "1", "1"])
    exits = baselines.fixed_budget(table, np.array([4, 6, 20, 99]))
    assert exits.tokens[:, 0].tolist() == [4, 6, 20, 20]
    assert exits.boundary[:, 0].tolist() == [1, 1, NATURAL, NATURAL]
    assert exits.is_exact[:, 0].tolist() == [True, False, True, True]


def test_probing_costs_every_trial_answer_before_the_exit() -> None:
    table = one(["0", "1", "1", "1"], trial_tokens=[9, 2, 3, 4])
    replay = Replay(table)
    spent = baselines.probe_tokens(table, replay.exits_at([[0], [1], [3], [NATURAL]]))
    assert spent[:, 0].tolist() == [0, 0, 3 + 4, 3 + 4 + 5]


def test_no_thinking_exits_before_the_first_token() -> None:
    exits = baselines.no_thinking(known_table(5))
    assert exits.tokens.tolist() == [[0] * 5]


def test_certified_threshold_keeps_the_losses_that_the_test_allows() -> None:
    table = known_table(600, seed=1, noise=0.5)
    replay = Replay(table)
    scores = -np.concatenate(
        [[np.nan, *table.signals[table.tokens_of(i)][9:100:10, 2]] for i in range(len(table))]
    )
    limit = baselines.certified(scores, replay, 0.02, 0.1)
    outcomes = replay.outcomes(replay.exits_by_score(scores, [limit]))
    assert 0 < outcomes.lost.sum() <= most_losses(600, 0.02, 0.1)
    assert replay.summaries(outcomes)[0].oracle_share > 0.3
    random = np.random.default_rng(0).random(len(scores))
    chance = replay.outcomes(
        replay.exits_by_score(random, [baselines.certified(random, replay, 0.02, 0.1)])
    )
    assert replay.summaries(chance)[0].oracle_share < 0.1


def examples(n: int, seed: int) -> list[Example]:
    """Feature 0 jumps up at the paragraph where the answer is settled, and falls again there."""
    random = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(n):
        k = int(torch.randint(1, 6, (1,), generator=random))
        features = 0.3 * torch.randn(60, 4, generator=random)
        features[10 * k - 1 : 10 * k, 0] += 6  # one token of evidence, at the settling boundary
        made.append(Example(features, list(range(0, 61, 10)), 10 * k))
    return made


def test_attention_probe_carries_evidence_forward_and_a_pointwise_one_cannot() -> None:
    torch.manual_seed(0)
    attention = AttentionProbe(4, width=16, heads=2)
    attention.fit(examples(100, 0), epochs=12, batch_tokens=600, rate=1e-2, quiet=True)
    pointwise = SufficiencyProbe().fit(examples(200, 0))
    late = {"attention": [], "pointwise": []}  # type: ignore[var-annotated]
    for example in examples(50, 1):
        assert example.settled_from is not None
        k = example.settled_from // 10
        if k < 5:
            late["attention"].append(attention.scores(example)[k + 2 :].min())
            late["pointwise"].append(pointwise.scores(example)[k + 2 :].max())
    assert np.mean(late["attention"]) > 0.8
    assert np.mean(late["pointwise"]) < 0.8


def test_probe_fits_are_the_same_every_time() -> None:
    a, b = (SufficiencyProbe().fit(examples(50, 0)) for _ in range(2))
    assert torch.equal(a.weight, b.weight)
