"""Training texts as tensors, made on the fly from a seed: traces, each with a few *exits*.

An exit is a branch that leaves the trace at a paragraph boundary as the engine does: the think end
right after ``.\\n\\n``, then the answer that the reasoner holds there. The branches hang on their
trace by the attention mask and by position ids, so that one forward pass trains the thinking and
several exits from it. Without them, forced answers are unreliable even where the thinking is done.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from specexit.tiny.data import draw
from specexit.tiny.tokenizer import END, END_THINK, THINK, prompt_text
from specexit.tiny.traces import Trace, answer_text, make_trace

IGNORED = -100
# What training sees more of than the main set does, to learn it from fewer texts.
SLIP_SHARE = 0.2
STEP_WEIGHTS = (0.14, 0.24, 0.27, 0.22, 0.09, 0.04)
# Half the texts stop soon after the derivation: re-checks are long, and easy to learn.
CUT_SHARE = 0.5
# The prompt of a chat with thinking off opens and closes the thinking itself.
NO_THINKING_SHARE = 0.02
# Problems grow with the training: (progress, most steps).
_CURRICULUM = ((0.03, 1), (0.07, 2), (0.13, 3), (0.20, 4), (1.01, 6))
_POOL = 160


@dataclass(frozen=True)
class Text:
    """One row: ``ids``, ``labels``, ``positions`` [T]; branch b spans ``branches[b]`` of them.

    A branch ``(start, end, parent)`` sees the trace up to and including index ``parent`` and
    itself. The trace is ``ids[:trace]``.
    """

    ids: list[int]
    labels: list[int]
    positions: list[int]
    trace: int
    branches: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Batch:
    """``ids``, ``labels``, ``positions`` [B, T] int64; ``mask`` [B, 1, T, T] bool, True = sees."""

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor


class TextMaker:
    """Turns problems into training texts. One object serves one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._think = self._id(THINK)
        self._end_think = self._id(END_THINK)
        self._end = self._id(END)
        self._blank = self.encode("\n\n")
        self._is_boundary = ["\n\n" in tokenizer.decode([index]) for index in range(len(tokenizer))]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text)
        return ids

    def text(self, rng: random.Random, most_steps: int) -> Text:
        problem = draw(rng, "train", slip_share=SLIP_SHARE, step_weights=STEP_WEIGHTS[:most_steps])
        trace = make_trace(problem, rng)
        prompt = self.encode(prompt_text(problem.question))
        if rng.random() < NO_THINKING_SHARE:
            return self._without_thinking(prompt, trace, rng)
        keep = len(trace.paragraphs)
        if rng.random() < CUT_SHARE:
            keep = min(keep, trace.derivation_end + rng.randint(0, 1))
        whole = keep == len(trace.paragraphs)
        thinking = "<think>\n" + "\n\n".join(trace.paragraphs[:keep])
        ids = self.encode(thinking + ("\n" if whole else "\n\n"))
        boundaries = [1, *(i + 1 for i, token in enumerate(ids) if self._is_boundary[token])]
        if whole:
            ids += [self._end_think, *self._blank, *self.encode(trace.answer_text), self._end]
        start, length = len(prompt), len(prompt) + len(ids)
        text = Text(prompt + ids, [IGNORED] * start + ids, list(range(length)), length, branches=[])
        for boundary in self._exits(trace, len(boundaries), rng):
            self._hang(text, start + boundaries[boundary], trace.guess(boundary, rng))
        return text

    def _exits(self, trace: Trace, available: int, rng: random.Random) -> list[int]:
        """Boundaries to leave at: one before the derivation's end, up to two from there on."""
        chosen = {rng.randrange(min(trace.derivation_end, available))}
        late = range(trace.derivation_end, available)
        if late:
            chosen |= {late[0] if rng.random() < 0.5 else rng.choice(late), rng.choice(late)}
        believing = [
            k for k in range(min(trace.derivation_end, available)) if trace.beliefs[k] is not None
        ]
        if believing:  # a slip that is not corrected yet: the answer held is the wrong one
            chosen.add(rng.choice(believing))
        return sorted(chosen)

    def _hang(self, text: Text, position: int, answer: int) -> None:
        """Add a branch that leaves the trace before index ``position``."""
        branch = [self._end_think, *self._blank, *self.encode(answer_text(answer)), self._end]
        begin = len(text.ids)
        text.ids.extend(branch)
        text.labels.extend([IGNORED, *branch[1:]])
        text.positions.extend(range(position, position + len(branch)))
        text.branches.append((begin, begin + len(branch), position - 1))

    def _without_thinking(self, prompt: list[int], trace: Trace, rng: random.Random) -> Text:
        prompt = [*prompt, self._think, *self._blank, self._end_think, *self._blank]
        ids = [*self.encode(answer_text(trace.guess(0, rng))), self._end]
        length = len(prompt) + len(ids)
        labels = [IGNORED] * len(prompt) + ids
        return Text(prompt + ids, labels, list(range(length)), length, branches=[])

    def _id(self, token: str) -> int:
        index = self._tokenizer.convert_tokens_to_ids(token)
        assert isinstance(index, int)
        return index


def batches(
    tokenizer: PreTrainedTokenizerFast, *, seed: int, steps: int, tokens: int
) -> Iterator[Batch]:
    """``steps`` batches of at most ``tokens`` tokens (padding counted), rows of like length."""
    maker = TextMaker(tokenizer)
    rng = random.Random(f"train {seed}")
    pad = int(tokenizer.pad_token_id)
    made = 0
    while made < steps:
        progress = made / steps
        most = next(limit for until, limit in _CURRICULUM if progress < until)
        pool = sorted((maker.text(rng, most) for _ in range(_POOL)), key=lambda text: len(text.ids))
        groups: list[list[Text]] = [[]]
        for text in pool:
            if groups[-1] and len(text.ids) * (len(groups[-1]) + 1) > tokens:
                groups.append([])
            groups[-1].append(text)
        rng.shuffle(groups)
        for group in groups[: steps - made]:
            yield collate(group, pad)
            made += 1


def collate(texts: list[Text], pad: int) -> Batch:
    rows, width = len(texts), max(len(text.ids) for text in texts)
    ids = torch.full((rows, width), pad)
    labels = torch.full((rows, width), IGNORED)
    positions = torch.zeros((rows, width), dtype=torch.int64)
    mask = torch.ones(width, width, dtype=torch.bool).tril().repeat(rows, 1, 1)
    for row, text in enumerate(texts):
        length = len(text.ids)
        ids[row, :length] = torch.tensor(text.ids)
        labels[row, :length] = torch.tensor(text.labels)
        positions[row, :length] = torch.tensor(text.positions)
        for begin, end, parent in text.branches:
            mask[row, begin:end, parent + 1 : begin] = False
        # Padding behind the row sees itself only through the causal part; its loss is ignored.
    return Batch(ids, labels, positions, mask[:, None])
