"""Replay a contract on existing outputs: where it would have committed, to what, at what gain."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specexit.committer import Committer
from specexit.contracts import Contract

from .accounting import Account, aggregate
from .guess import Grader, visible
from .records import Record

CHUNK_CHARS = 4  # about a token: what a stream hands over at a time
# What a model may write next that could upset a decision.
HOSTILE = (
    r" Wait, no: \boxed{3}",
    "\n\nFINAL ANSWER: C\n",
    "</answer><answer>0</answer>",
    '\n{"reasoning": "", "answer": "0"}\n',
    "\n--- a/z\n+++ b/z\n@@ -1 +1 @@\n-a\n+b\n",
    "}",
    "0",
    "</think>",
    "<think>hm</think>",
    "\n```\n",
)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One record under one contract.

    `answer`: what the committer committed to; `position`: characters kept; `early`: before the end
    of the output; `graded`: what the usual grader takes from the full text; `faithful`: whether the
    two are equal (None without a grader); `sound`: whether no continuation tried changed the
    evaluator's answer; `account`: tokens behind the thinking, and times where the record has them.
    """

    record: Record
    contract: str
    answer: Any
    position: int
    early: bool
    graded: Any
    faithful: bool | None
    sound: bool
    account: Account


def replay_record(
    record: Record,
    name: str,
    contract: Contract,
    *,
    grader: Grader | None = None,
    count: Callable[[str], int],
    continuations: Sequence[str] = (),
    think_start: str = "<think>",
    think_end: str = "</think>",
    seed: int = 0,
) -> Replayed:
    """Stream the record through a committer and compare with the full text.

    `continuations`: texts to append at the commit (besides the real one and `HOSTILE`).
    """
    thinking = record.thinking(think_start, think_end)
    tags = {"think_start": think_start, "think_end": think_end}
    committer = Committer(contract, thinking=thinking, **tags)
    commit, commit_s, read = None, None, 0
    for piece, seconds in record.deltas or _chunks(record.text):
        commit = committer.feed(piece)
        read += len(piece)
        if commit is not None:
            commit_s = seconds if record.deltas else None
            break
    early = commit is not None
    commit = commit or committer.close()
    answer = None if commit is None else commit.answer
    position = len(record.text) if commit is None else commit.position
    sound = True
    if early:
        rng = random.Random(f"{seed} {record.id}")
        others = rng.sample(continuations, min(2, len(continuations)))
        for tail in (record.text[read:], *HOSTILE, *others):
            whole = contract.project(record.text[:read] + tail, thinking=thinking, **tags)
            sound = sound and (whole == answer or contract.equal(whole, answer))
    shown = "" if thinking is True else visible(record.text, think_start, think_end)
    graded = grader(shown) if grader else None
    faithful = None
    if grader is not None and commit is not None:
        faithful = graded is not None and contract.equal(answer, graded)
    begin = len(record.text) - len(shown)
    full = count(shown)
    kept = count(record.text[begin:position]) if early else full
    account = Account(
        full_tokens=full,
        commit_tokens=min(kept, full) if early else None,
        valid=commit is not None,
        commit_s=commit_s,
        end_s=record.deltas[-1][1] if record.deltas else None,
    )
    return Replayed(
        record=record,
        contract=name,
        answer=answer,
        position=position,
        early=early,
        graded=graded,
        faithful=faithful,
        sound=sound,
        account=account,
    )


def _chunks(text: str) -> Iterable[tuple[str, float]]:
    for at in range(0, len(text), CHUNK_CHARS):
        yield text[at : at + CHUNK_CHARS], 0.0


def summarise(replayed: Sequence[Replayed]) -> list[dict[str, Any]]:
    """A row per contract and model, in order."""
    groups: dict[tuple[str, str], list[Replayed]] = {}
    for one in replayed:
        groups.setdefault((one.contract, one.record.model), []).append(one)
    return [_row(name, model, group) for (name, model), group in sorted(groups.items())]


def _row(name: str, model: str, group: list[Replayed]) -> dict[str, Any]:
    committed = [one for one in group if one.account.valid]
    judged = [one for one in committed if one.faithful is not None]
    totals = aggregate([one.account for one in group])
    return {
        "contract": name,
        "model": model,
        "n": len(group),
        "committed": len(committed),
        "committed_early": sum(one.early for one in committed),
        "unsound": sum(not one.sound for one in committed),
        "judged": len(judged),
        "faithful": sum(bool(one.faithful) for one in judged),
        "answer_tokens": totals["full_tokens"],
        "answer_tokens_saved": totals["saved_tokens"],
        "answer_tokens_saved_share": round(totals["saved_share"], 4),
        "ttva_s": totals["ttva_s"],
    }
