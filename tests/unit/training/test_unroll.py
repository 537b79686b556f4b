"""The unrolled training pass computes what step-by-step drafting computes."""

from __future__ import annotations

import pytest
import torch

from specexit.heads.cache import DraftCache
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config
from training.unroll import step_mask, unroll

STEPS = 3


def _head(**options: object) -> Eagle3Head:
    torch.manual_seed(0)
    values: dict[str, object] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 50,
        "draft_vocab_size": 50,
        "aux_layer_ids": (1, 2),
        "target_hidden_size": 32,
    }
    head = Eagle3Head(Eagle3Config(**(values | options)))  # type: ignore[arg-type]
    return head.bind_embedding(torch.randn(50, 32))


@pytest.mark.parametrize(
    "options",
    [{}, {"norm_before_residual": True, "fc_norm": True}, {"style": "qwen3", "norm_output": True}],
)
@torch.no_grad()
def test_unrolled_logits_equal_drafting_with_a_cache(options: dict[str, object]) -> None:
    head = _head(**options)
    n = 11
    ids = torch.randint(0, 50, (1, n))
    features = torch.randn(n, head.config.in_features)
    positions, document = torch.arange(n)[None], torch.zeros(1, n, dtype=torch.int64)
    outs = list(unroll(head, head.combine(features)[None], ids, positions, document, STEPS))
    unrolled = [head.logits(out)[0] for out in outs]
    cache = DraftCache()
    for p in range(n - STEPS - 1):
        row, hidden = head.extend(cache, head.combine(features[p : p + 1]), ids[0, p + 1 : p + 2])
        kept = len(cache)
        for k in range(STEPS):
            torch.testing.assert_close(unrolled[k][p], row[0], rtol=0, atol=1e-5)
            following = ids[0, p + k + 2 : p + k + 3]
            row, hidden = head.extend(cache, hidden, following)
        cache.truncate(kept)


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other() -> None:
    head = _head()
    lengths = (7, 5)
    n = sum(lengths)
    ids = torch.randint(0, 50, (1, n))
    features = torch.randn(1, n, head.config.in_features)
    positions = torch.cat([torch.arange(m) for m in lengths])[None]
    document = torch.cat([torch.full((m,), i) for i, m in enumerate(lengths)])[None]
    is_target = torch.ones(1, n, dtype=torch.bool)

    def logits(ids: torch.Tensor, features: torch.Tensor) -> list[torch.Tensor]:
        outs = unroll(head, head.combine(features), ids, positions, document, STEPS)
        return [head.logits(o)[0, step_mask(is_target, document, k)[0]] for k, o in enumerate(outs)]

    packed = logits(ids, features)
    begin = 0
    for number, m in enumerate(lengths):
        part = slice(begin, begin + m)
        alone = unroll(
            head,
            head.combine(features[:, part]),
            ids[:, part],
            positions[:, part],
            torch.zeros(1, m, dtype=torch.int64),
            STEPS,
        )
        for k, out in enumerate(alone):
            rows = document[0, step_mask(is_target, document, k)[0]] == number
            expected = head.logits(out)[0, : m - k - 2]
            torch.testing.assert_close(packed[k][rows], expected, rtol=0, atol=1e-5)
        begin += m
    changed, other = ids.clone(), features.clone()
    changed[:, : lengths[0]] = (changed[:, : lengths[0]] + 1) % 50
    other[:, : lengths[0]] += 1
    again = logits(changed, other)
    for k in range(STEPS):
        second = document[0, step_mask(is_target, document, k)[0]] == 1
        assert torch.equal(packed[k][second], again[k][second])


def test_the_first_answer_token_is_trained() -> None:
    """https://github.com/sgl-project/SpecForge/issues/885: ids and targets were shifted, the mask
    was not, so the first answer token was never trained and a token past the end was."""
    # prompt 0 1 2, output 3 4 5: row p predicts token p + 2 at step 0, p + 3 at step 1, ...
    is_target = torch.tensor([[False, False, False, True, True, True]])
    document = torch.zeros(1, 6, dtype=torch.int64)
    predicted = [
        (step_mask(is_target, document, k)[0].nonzero().flatten() + k + 2).tolist()
        for k in range(3)
    ]
    assert predicted == [[3, 4, 5], [3, 4, 5], [4, 5]]


def test_padding_and_other_sequences_are_never_targets() -> None:
    is_target = torch.ones(1, 8, dtype=torch.bool)
    document = torch.tensor([[0, 0, 0, 1, 1, 1, -1, -1]])
    assert step_mask(is_target, document, 0)[0].nonzero().flatten().tolist() == [0, 3]
    assert not step_mask(is_target, document, 1).any()
