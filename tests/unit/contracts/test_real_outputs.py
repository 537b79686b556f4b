"""Every contract over real outputs: no cut and no continuation changes a commit."""

from __future__ import annotations

import random

import pytest

from specexit import Committer, contract
from specexit.ace.bench import CONTRACTS
from specexit.ace.guess import guess, usual_grader
from specexit.ace.records import Record
from specexit.ace.replay import HOSTILE, replay_record
from specexit.ace.tokens import count_pieces

FILES = [
    "math_lrm_dev",
    "mmlupro_lrm_dev",
    "misguided_lrm_dev",
    "final_line_lrm_dev",
    "rg_math_rlft_dev",
    "rg_odd_boxed_dev",
    "rg_puzzles_rlft_dev",
    "rg_zero_shot_dev",
    "zeroeval_json_dev",
    "devin_diffs_dev",
]
MADE = [contract(spec) for spec in (*CONTRACTS, {"type": "boxed_integer", "evaluator": "last"})]


def sample(records, name, count):
    rows = [row for row in records(name) if row["output"]]
    return random.Random(name).sample(rows, min(count, len(rows)))


def stream(made, text, thinking, rng, longest):
    """The commit when the text comes in random pieces, and what had been read by then."""
    committer, at = Committer(made, thinking=thinking), 0
    while at < len(text):
        step = rng.randint(1, longest)
        commit = committer.feed(text[at : at + step])
        at += step
        if commit is not None:
            return commit, min(at, len(text))
    return committer.close(), None


@pytest.mark.parametrize("name", FILES)
def test_every_contract_is_chunk_invariant_and_sound(records, name):
    rng = random.Random(name)
    commits = 0
    for row in sample(records, name, 3):
        text = row["output"][-2_500:]
        for made in MADE:
            for thinking in ("auto", False):
                whole, _ = stream(made, text, thinking, rng, 10**9)
                for longest in (1, 9):
                    cut, read = stream(made, text, thinking, rng, longest)
                    assert cut == whole, (made, row["id"])
                if whole is None or read is None:
                    continue
                commits += 1
                kept = text[: whole.position]
                assert made.project(kept, thinking=thinking) == whole.answer
                for more in (text[read:], *rng.sample(HOSTILE, 3)):
                    assert made.project(text[:read] + more, thinking=thinking) == whole.answer
    # Most of these models never close their thinking, or commit at their end.
    assert commits > 0 or name == "final_line_lrm_dev"


@pytest.mark.parametrize("name", ["mmlupro_lrm_dev", "misguided_lrm_dev", "math_lrm_dev"])
def test_nothing_commits_inside_real_thinking(records, name):
    inside = 0
    for row in sample(records, name, 25):
        text = row["output"]
        end = text.rfind("</think>")
        if end < 0 or not text.startswith("<think>"):
            continue
        for made in MADE:
            committer = Committer(made, thinking=True)
            commit = committer.feed(text[len("<think>") : end + 4])
            assert commit is None, (made, row["id"])
            assert committer.close() is None
            inside += made.project(text[:end], thinking=False) is not None
    assert inside > 0  # the thinking does hold what contracts look for


@pytest.mark.parametrize(
    ("name", "count", "least"),
    [
        ("math_lrm_dev", 38, 1.0),
        ("mmlupro_lrm_dev", 40, 1.0),
        ("final_line_lrm_dev", 40, 1.0),
        ("rg_math_rlft_dev", 40, 0.9),
        ("rg_zero_shot_dev", 40, 0.95),
    ],
)
def test_committed_answers_are_those_of_the_usual_grader(records, name, count, least):
    judged = faithful = 0
    for row in sample(records, name, count):
        keys = ("id", "model", "task", "kind", "join")
        record = Record(text=row["output"], gold=row["gold"], **{k: str(row[k]) for k in keys})
        named, made = guess(record)
        letters = getattr(made, "letters", "ABCD")
        one = replay_record(
            record, named, made, grader=usual_grader(named, letters), count=count_pieces
        )
        assert one.sound, record.id
        if one.faithful is not None:
            judged += 1
            faithful += one.faithful
    assert judged >= count / 3
    assert faithful >= least * judged
