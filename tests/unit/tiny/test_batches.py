from __future__ import annotations

import itertools
import random

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from specexit.tiny.batches import IGNORED, Text, TextMaker, batches, collate
from specexit.tiny.train import model_config


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config: Qwen3Config = model_config(tokenizer)
    config.num_hidden_layers = 2
    config.layer_types = ["full_attention"] * 2
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def texts(tokenizer: PreTrainedTokenizerFast) -> list[Text]:
    maker, rng = TextMaker(tokenizer), random.Random(3)
    return [maker.text(rng, 4) for _ in range(12)]


@torch.no_grad()
def test_a_branch_computes_what_the_engine_computes_after_an_exit(
    model: Qwen3ForCausalLM, texts: list[Text], tokenizer: PreTrainedTokenizerFast
) -> None:
    batch = collate(texts[:4], int(tokenizer.pad_token_id))
    logits = model(
        input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions
    ).logits
    for row, text in enumerate(texts[:4]):
        plain = model(input_ids=torch.tensor([text.ids[: text.trace]])).logits[0]
        # 1e-4: float32 sums in another order
        torch.testing.assert_close(logits[row, : text.trace], plain, atol=1e-4, rtol=1e-4)
        for begin, end, parent in text.branches:
            left = text.ids[: parent + 1] + text.ids[begin:end]
            plain = model(input_ids=torch.tensor([left])).logits[0, parent + 1 :]
            torch.testing.assert_close(logits[row, begin:end], plain, atol=1e-4, rtol=1e-4)


def test_exits_follow_a_boundary_and_end_with_a_boxed_answer(
    texts: list[Text], tokenizer: PreTrainedTokenizerFast
) -> None:
    assert any(len(text.branches) > 1 for text in texts)
    for text in texts:
        for begin, end, parent in text.branches:
            before = tokenizer.decode(text.ids[: parent + 1])
            assert before.endswith((".\n\n", "<think>"))
            branch = tokenizer.decode(text.ids[begin:end])
            assert branch.startswith("</think>\n\nThe answer is \\boxed{")
            assert branch.endswith("}.<|im_end|>")


def test_neither_the_prompt_nor_an_injected_think_end_has_a_loss(
    texts: list[Text], tokenizer: PreTrainedTokenizerFast
) -> None:
    for text in texts:
        learnt = [i for i, label in enumerate(text.labels) if label != IGNORED]
        assert all(text.labels[i] == text.ids[i] for i in learnt)
        assert tokenizer.decode(text.ids[: learnt[0]]).endswith(("assistant\n", "</think>\n\n"))
        assert all(text.labels[begin] == IGNORED for begin, _, _ in text.branches)


def test_both_a_natural_and_an_injected_think_end_are_trained(
    texts: list[Text], tokenizer: PreTrainedTokenizerFast
) -> None:
    traces = [tokenizer.decode(text.ids[: text.trace]) for text in texts]
    natural = [trace.endswith("}.<|im_end|>") for trace in traces]
    assert any(natural)
    assert not all(natural)
    assert all((".\n</think>\n\n" in t) for t, n in zip(traces, natural, strict=True) if n)


def test_the_seed_alone_fixes_the_stream(tokenizer: PreTrainedTokenizerFast) -> None:
    def first(seed: int) -> list[torch.Tensor]:
        stream = batches(tokenizer, seed=seed, steps=100, tokens=1024)
        return [batch.ids for batch in itertools.islice(stream, 5)]

    assert all(torch.equal(a, b) for a, b in zip(first(1), first(1), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first(1), first(2), strict=True))


def test_batches_keep_to_their_number_and_size(tokenizer: PreTrainedTokenizerFast) -> None:
    made = list(batches(tokenizer, seed=0, steps=7, tokens=1024))
    assert len(made) == 7
    assert all(batch.ids.numel() <= 1024 for batch in made)
