"""Cut a text in many ways, and compare the commits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from specexit import Commit, Committer
from specexit.contracts import Contract


def run(committer: Committer, pieces: list[str]) -> Commit | None:
    """Feed the pieces, then close; the commit or None."""
    for piece in pieces:
        commit = committer.feed(piece)
        if commit is not None:
            return commit
    return committer.close()


def cuts(text: str, rng: random.Random, rounds: int) -> Iterator[list[str]]:
    """One piece, single characters, every cut in two of a short text, and random cuts."""
    yield [text]
    yield list(text)
    if len(text) <= 120:
        for at in range(1, len(text)):
            yield [text[:at], text[at:]]
    for _ in range(rounds):
        longest = rng.choice((2, 4, 9, 40))
        pieces, at = [], 0
        while at < len(text):
            step = rng.randint(0, longest)
            pieces.append(text[at : at + step])
            at += step
        yield pieces


def check(
    contract: Contract, text: str, *, thinking: bool | str = False, rounds: int = 6
) -> Commit | None:
    """The commit on `text`, after checking every cut of it and what the answer must satisfy."""
    rng = random.Random(ascii(text))
    committer = Committer(contract, thinking=thinking)
    expected = run(committer, [text])
    for pieces in cuts(text, rng, rounds):
        committer.reset()
        assert run(committer, pieces) == expected, pieces
    if expected is not None:
        assert 0 <= expected.position <= len(text)
        assert contract.valid(expected.answer)
        kept = text[: expected.position]
        assert contract.project(kept, thinking=thinking) == expected.answer, kept
    return expected


def answer_of(contract: Contract, text: str, **options: Any) -> Any:
    """The committed answer of `text`, after `check`."""
    commit = check(contract, text, **options)
    return None if commit is None else commit.answer
