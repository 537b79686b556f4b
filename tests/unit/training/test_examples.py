"""Sequences, labels and packing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specexit.errors import ConfigError
from training.batch import collate
from training.examples import make_examples, signal_weights
from training.packing import epoch_batches, pack, share
from training.vocabulary import choose_vocabulary

from .synthetic import BLANK_LINE, THINK_END, make_trace


def _trace(**changes: object):  # type: ignore[no-untyped-def]
    return make_trace(0, random.Random(0), **changes)


def _examples(trace, **options):  # type: ignore[no-untyped-def]
    values = {"span": "full", "confidence": "confidence", "keep_redundant": True}
    return make_examples([trace], think_end_ids=(THINK_END,), **(values | options))


def test_thinking_tokens_line_up_with_their_labels() -> None:
    trace = _trace()
    (one,) = _examples(trace)
    thinking = one.thinking
    tokens = one.ids[thinking.start : thinking.start + len(thinking.labels)].tolist()
    assert tokens == trace.thinking_ids
    assert [tokens[i] for i in thinking.boundary.nonzero().flatten()] == [BLANK_LINE] * (
        len(trace.boundaries) - 1
    )
    assert thinking.labels[trace.t_star - 1].tolist()[1:] == [1.0, 0.0]
    assert one.is_target.tolist() == [False] * 5 + [True] * len(trace.output_ids)


def test_minimal_span_cuts_the_thinking_at_the_sufficient_point() -> None:
    trace = _trace()
    signals, tokens = _examples(trace, span="minimal")
    assert not signals.is_target.any()
    assert tokens.thinking is None
    wanted = (
        trace.prompt_ids + trace.output_ids[: trace.t_star] + trace.output_ids[trace.think_end :]
    )
    assert tokens.ids.tolist() == wanted


def test_confidence_counts_only_where_the_trial_answer_agrees() -> None:
    trace = _trace()
    (plain,) = _examples(trace)
    (agreeing,) = _examples(trace, confidence="confidence_agrees")
    before = trace.boundaries[trace.k_star - 1]
    assert (agreeing.thinking.labels[:before, 0] == 0).all()
    torch.testing.assert_close(
        agreeing.thinking.labels[before:, 0], plain.thinking.labels[before:, 0]
    )


def test_redundant_tail_has_no_weight_when_it_is_not_kept() -> None:
    trace = _trace()
    (one,) = _examples(trace, keep_redundant=False)
    assert one.thinking.weight.sum() == trace.t_star


def test_labels_that_end_at_the_sufficient_point_train_up_to_there() -> None:
    trace = _trace()
    n = trace.t_star
    cut = replace(
        trace,
        confidence=trace.confidence[:n],
        progress=trace.progress[:n],
        remain=trace.remain[:n],
    )
    (one,), (full,) = _examples(cut), _examples(trace, keep_redundant=False)
    assert one.thinking.weight.equal(full.thinking.weight)
    assert one.thinking.labels[:n].equal(full.thinking.labels[:n])


def test_boundary_tokens_weigh_more() -> None:
    (one,) = _examples(_trace())
    weight = signal_weights(one.thinking, 50.0, boundaries_only=False)
    assert set(weight.tolist()) == {1.0, 50.0}
    only = signal_weights(one.thinking, 50.0, boundaries_only=True)
    assert only.sum() == one.thinking.boundary.sum()


@pytest.mark.parametrize(
    ("column", "value", "limits"),
    [
        ("confidence", 1.7, r"\[0, 1\]"),
        ("progress", -0.1, r"\[0, 1\]"),
        ("remain", float("nan"), r"\[0, inf\)"),
    ],
)
def test_a_label_out_of_range_names_the_trace(column: str, value: float, limits: str) -> None:
    trace = _trace()
    getattr(trace, column)[2] = value
    with pytest.raises(ConfigError, match=rf"trace trace-0: {column}\[2\] = .* not in {limits}"):
        _examples(trace)


def test_missing_labels_are_an_error() -> None:
    trace = _trace(progress=[0.5])
    with pytest.raises(ConfigError, match="progress has 1 values for"):
        _examples(trace)


@given(
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=40),
    rows=st.sampled_from([2, 4, 8]),
    epoch=st.integers(0, 3),
)
def test_every_sequence_is_packed_once_and_fits(lengths: list[int], rows: int, epoch: int) -> None:
    batches = epoch_batches(lengths, capacity=20, rows=rows, seed=1, epoch=epoch)
    packed = [row for batch in batches for row in batch]
    assert sorted(i for row in packed for i in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 20 or len(row) == 1 for row in packed)
    for batch in batches:
        dealt = share(batch, 2)
        assert sorted(map(tuple, dealt[0] + dealt[1])) == sorted(map(tuple, batch))


def test_a_sequence_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="21 tokens, a row holds 20"):
        pack([21], [0], 20)


def test_collated_places_point_at_the_thinking_tokens() -> None:
    rng = random.Random(1)
    traces = [make_trace(i, rng) for i in range(3)]
    examples = make_examples(
        traces, span="full", confidence="confidence", keep_redundant=True, think_end_ids=()
    )
    batch = collate(examples, [[2, 0], [1]], boundary_weight=50, boundaries_only=False)
    flat = batch.ids.flatten()[batch.think_at]
    for number, i in enumerate((2, 0, 1)):
        assert flat[batch.think_row == number].tolist() == traces[i].thinking_ids
    assert batch.examples == (2, 0, 1)
    assert int(batch.positions[0, len(examples[2])]) == 0


def test_vocabulary_holds_the_most_frequent_tokens_and_the_forced_ones() -> None:
    (one,) = _examples(_trace())
    chosen = choose_vocabulary([one], 128, 4, always=[100])
    assert 100 in chosen.target_ids.tolist()
    assert BLANK_LINE in chosen.target_ids.tolist()
    assert chosen.target_ids.tolist() == sorted(chosen.target_ids.tolist())
    counts = torch.bincount(one.ids[one.is_target], minlength=128)
    assert chosen.coverage == pytest.approx(float(counts[chosen.target_ids].sum() / counts.sum()))
