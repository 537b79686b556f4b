"""Contracts in transformers' own `generate`: per-row stop, streaming, and chunks of K tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.hf_chunks import generate_in_chunks
from inference.hf_stop import ContractStoppingCriteria, ContractStreamer, TokenText
from specexit.committer import Committer

from .conftest import BLANK, END, START, Parts

# The random model writes digits and blank lines; the first digit after the thinking is an answer
# that comes at another place in every row.
DIGIT = {"type": "regex", "pattern": "[0-9]"}
N = 40


def batch(tokenizer: Any) -> dict[str, torch.Tensor]:
    """Four prompts of different lengths, padded on the left; one opens the thinking."""
    rows = [[30, 31], [32, 33, 34, 35], [36], [37, 38, START]]
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[0] * (width - len(r)) + r for r in rows]),
        "attention_mask": torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows]),
    }


def alone(parts: Parts, inputs: dict[str, torch.Tensor], row: int) -> str:
    """Plain greedy text of one row on its own, tags included."""
    ids = inputs["input_ids"][row : row + 1, inputs["attention_mask"][row] == 1]
    out = parts.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=N, do_sample=False
    )
    return parts.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def expected(parts: Parts, row: int) -> str:
    """The text up to the commit, read from the plain run by an independent committer."""
    inputs = batch(parts.tokenizer)
    text = alone(parts, inputs, row)
    thinking = START in inputs["input_ids"][row].tolist()
    commit = Committer(DIGIT, thinking=True if thinking else "auto")
    if not thinking and "</think>" not in text:
        commit = Committer(DIGIT, thinking=False)
    found = commit.feed(text)
    return text if found is None else text[: found.position]


def test_each_row_of_a_batch_stops_at_its_own_answer(parts: Parts) -> None:
    inputs = batch(parts.tokenizer)
    stop = ContractStoppingCriteria(DIGIT, parts.tokenizer, inputs["input_ids"].shape[1])
    out = parts.model.generate(
        **inputs, max_new_tokens=N, do_sample=False, stopping_criteria=[stop]
    )
    assert stop.texts == [expected(parts, row) for row in range(4)]
    assert sum(answer is not None for answer in stop.answers) >= 2
    assert len(set(stop.tokens)) >= 2
    for row, n in enumerate(stop.tokens):
        generated = out[row, inputs["input_ids"].shape[1] :].tolist()
        assert all(t == 0 for t in generated[n:])  # padding only


def test_sampled_sequences_of_one_prompt_stop_apart(parts: Parts) -> None:
    ids = torch.tensor([[30, 31]])
    stop = ContractStoppingCriteria(DIGIT, parts.tokenizer, 2)
    torch.manual_seed(0)
    parts.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=N,
        do_sample=True,
        num_return_sequences=3,
        stopping_criteria=[stop],
    )
    assert len(stop.rows) == 3
    assert len(set(stop.tokens)) >= 2


def test_beam_search_is_refused(parts: Parts) -> None:
    ids = torch.tensor([[30, 31]])
    stop = ContractStoppingCriteria({"type": "regex", "pattern": "never"}, parts.tokenizer, 2)
    with pytest.raises(ValueError, match="num_beams=1"):
        parts.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=N,
            num_beams=4,
            stopping_criteria=[stop],
        )


def test_the_streamer_writes_the_text_up_to_the_answer(parts: Parts) -> None:
    inputs = batch(parts.tokenizer)
    ids = inputs["input_ids"][:1, inputs["attention_mask"][0] == 1]
    pieces: list[str] = []
    streamer = ContractStreamer(DIGIT, parts.tokenizer, pieces.append)
    parts.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=N,
        do_sample=False,
        streamer=streamer,
        stopping_criteria=[ContractStoppingCriteria(DIGIT, parts.tokenizer, ids.shape[1])],
    )
    assert "".join(pieces) == expected(parts, 0)
    assert streamer.follower is not None
    assert streamer.follower.text == expected(parts, 0)


def test_the_streamer_refuses_a_batch(parts: Parts) -> None:
    streamer = ContractStreamer(DIGIT, parts.tokenizer, lambda _: None)
    with pytest.raises(ValueError, match="one row, generate has 4"):
        streamer.put(batch(parts.tokenizer)["input_ids"])


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_any_size_give_the_same_texts(parts: Parts, chunk: int) -> None:
    inputs = batch(parts.tokenizer)
    prompts = [
        row[mask == 1].tolist()
        for row, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    ]
    asked: list[int] = []

    def generate(ids: torch.Tensor, mask: torch.Tensor, n: int) -> torch.Tensor:
        asked.append(ids.shape[0])
        return parts.model.generate(ids, attention_mask=mask, max_new_tokens=n, do_sample=False)

    followers = generate_in_chunks(
        generate, prompts, DIGIT, parts.tokenizer, chunk=chunk, max_new_tokens=N
    )
    assert [f.text for f in followers] == [expected(parts, row) for row in range(4)]
    assert asked[0] == 4
    assert chunk == 64 or asked[-1] < 4  # rows that have stopped are not asked for again


def test_a_chunk_of_no_tokens_is_refused(parts: Parts) -> None:
    with pytest.raises(ValueError, match="chunk: 0"):
        generate_in_chunks(lambda ids, mask, n: ids, [[30]], DIGIT, parts.tokenizer, chunk=0)


def test_pieces_of_text_join_to_the_decoded_text_with_split_characters() -> None:
    """Characters of several bytes, one byte a token; words with their blank in front."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    text = "naïve 答案 🙂 \\boxed{7}"
    pieces = []
    stream = TokenText(tokenizer, tokenizer.encode("Q: "))
    for token_id in tokenizer.encode(text):
        pieces.append(stream.add(token_id))
        assert "\ufffd" not in pieces[-1]
    assert "".join(pieces) == text
    assert "" in pieces  # the first bytes of a character bring nothing


def test_the_thinking_is_told_by_token_ids(parts: Parts) -> None:
    stop = ContractStoppingCriteria(DIGIT, parts.tokenizer, 1)
    digit = parts.tokenizer.encode("5")[0]
    ids = [30, START, digit, BLANK, END, 30, digit]
    flags = [bool(stop(torch.tensor([ids[: n + 1]]), None)[0]) for n in range(1, len(ids))]
    assert flags == [False] * 5 + [True]
    assert stop.answers == ["5"]


def test_a_row_that_ended_reads_no_padding(parts: Parts) -> None:
    stop = ContractStoppingCriteria(DIGIT, parts.tokenizer, 1, eos_token_ids=[1])
    digit = parts.tokenizer.encode("5")[0]
    assert not stop(torch.tensor([[30, 31]]), None)[0]
    assert stop(torch.tensor([[30, 31, 1]]), None)[0]
    assert stop(torch.tensor([[30, 31, 1, digit]]), None)[0]  # whatever pads the row
    assert stop.answers == [None]
