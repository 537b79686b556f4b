"""The live probing baselines ask at the right places and keep the right tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from inference.study.compare import Question
from inference.study.probing import ProbingRunner, Trial, deer_rule, repeated_rule
from inference.study.systems import Engines, System, sampling_params
from inference.study.timed import run_timed
from specexit.think import ThinkFormat
from tests.engine.chaos import END, SPLIT, START, VOCABULARY
from tests.engine.test_replay_live import prompts

THINK = ThinkFormat((START,), (END,))
BLANK = [i for i, text in enumerate(VOCABULARY) if "\n\n" in text]


class OneEngine(Engines):
    """`Engines` around an engine that is there already."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def of(self, system: System) -> Any:
        return self._llm


def questions() -> list[Question]:
    return [
        Question(str(i), "", ids, "1", '{"type": "boxed_integer"}', 0)
        for i, ids in enumerate(prompts(6))
    ]


@pytest.fixture
def llm(engine: Callable[..., Any], chaos: Path) -> Any:
    return engine(str(chaos / "target"), enable_prefix_caching=True)


def runner(llm: Any, rule: Callable[[Sequence[Trial]], bool]) -> ProbingRunner:
    return ProbingRunner(
        "probing",
        rule,
        OneEngine(llm),
        head=Path("none"),
        think=THINK,
        boundary_ids=BLANK,
        max_tokens=96,
        trial_tokens=6,
    )


def test_rule_that_never_fires_leaves_full_thinking_untouched(llm: Any) -> None:
    params = sampling_params(System("stock"), max_tokens=96)
    stock = run_timed(llm, [q.prompt_ids for q in questions()], [params] * 6)
    for full, found in zip(stock, runner(llm, lambda _: False).answer(questions()), strict=True):
        assert found.token_ids[:96] == full.token_ids
        assert found.text.startswith(full.text)


def test_exit_at_the_second_trial_keeps_two_paragraphs_and_that_answer(llm: Any) -> None:
    found = runner(llm, lambda trials: len(trials) == 2).answer(questions())
    exited = 0
    for question, answered in zip(questions(), found, strict=True):
        ids = answered.token_ids
        if END not in ids:
            continue
        at = ids.index(END)
        if sum(i in BLANK for i in ids[:at]) != 2 or ids[at - 1] not in BLANK:
            continue  # a natural end came first
        exited += 1
        params = sampling_params(System("stock"), max_tokens=6)
        [fresh] = run_timed(llm, [[*question.prompt_ids, *ids[: at + 1]]], [params])
        assert ids[at + 1 :] == fresh.token_ids
        assert answered.probe_tokens > 0
    assert exited > 0
    assert SPLIT in BLANK


def test_repeated_answers_fire_on_runs_of_valid_ones_only() -> None:
    rule = repeated_rule(1.5)
    same, other, none = Trial(7, -1.0, 3), Trial(8, -1.0, 3), Trial(None, -1.0, 3)
    assert rule([other, same, same])
    assert not rule([same, other])
    assert not rule([none, none])


def test_deer_fires_above_its_threshold() -> None:
    assert deer_rule(0.9)([Trial(7, -0.05, 3)])
    assert not deer_rule(0.96)([Trial(7, -0.05, 3)])
