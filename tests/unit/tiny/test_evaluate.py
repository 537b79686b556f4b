from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from specexit.tiny.data import problems, questions
from specexit.tiny.evaluate import probe, summary
from specexit.tiny.tokenizer import prompt_text
from specexit.tiny.traces import answer_text

N, SEED = 60, 11


class PerfectReasoner:
    """Writes the expected trace; forced out, it answers what the trace holds at that boundary."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        pairs = problems("shifted", N, SEED)
        self._traces = {prompt_text(p.question): trace for p, trace in pairs}

    def __call__(self, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        return [self._tokenizer.encode(self._go_on(self._tokenizer.decode(p))) for p in prompts]

    def _go_on(self, text: str) -> str:
        prompt, mark, thinking = text.partition("assistant\n")
        trace = self._traces[prompt + mark]
        if not thinking:
            return f"<think>\n{trace.thinking}\n</think>\n\n{trace.answer_text}<|im_end|>"
        belief = trace.beliefs[thinking.count("\n\n")]
        return f"\n\n{answer_text(0 if belief is None else belief)}<|im_end|>"


def test_the_expected_traces_measure_as_they_were_built(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    records = questions("shifted", N, SEED)
    probed = probe(records, PerfectReasoner(tokenizer), tokenizer)
    figures = summary(probed)
    assert figures["accuracy"] == figures["finished"] == figures["corrections_expected"] == 1.0
    assert figures["slips"] == figures["corrections"] > 0.1
    # the boundary after the last paragraph does not exist: a natural end has no blank line
    assert figures["paragraphs"] == sum(r["paragraphs"] for r in records) / N
    assert [p.stable for p in probed] == [r["derivation_end"] for r in records]
    assert 0.3 < figures["stable_ratio"] < 0.7
    for by_offset in figures["forced"].values():
        for offset, (accuracy, _) in by_offset.items():
            assert accuracy == float(int(offset) >= 0), offset


def test_thinking_that_never_ends_is_wrong(tokenizer: PreTrainedTokenizerFast) -> None:
    def endless(prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        return [tokenizer.encode("<think>\nHmm.\n\nHmm.") for _ in prompts]

    figures = summary(probe(questions("heldout", 3), endless, tokenizer))
    assert figures["accuracy"] == figures["finished"] == figures["stable_accuracy"] == 0.0
    assert figures["stable_ratio"] == 1.0
