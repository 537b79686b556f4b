"""Numbers behind a marker: separators, expressions, times, and digits that may still come."""

from __future__ import annotations

import pytest

from specexit import Committer, contract

from .streams import answer_of

NUMBER = contract("final_answer")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The final answer is 12.", "12"),
        ("The final answer is 12.5 km", "12.5"),
        ("The answer is 12\\text{ km}", "12"),
        ("FINAL: 3", "3"),
        ("FINAL: 3\nfoo", "3"),
        ("**FINAL: 7**", "7"),
        ("#### 1,234", "1234"),
        ("Answer: $9{,}500$", "9500"),
        ("Answer: \\$9,500", "9500"),
        ("Answer: 1,234,567.", "1234567"),
        ("answer: 12,5", None),
        ("The answer is 5 + 7 = 12.", "12"),
        ("Answer: x = 42 apples", "42"),
        ("Answer: 12 \\times 3 = 36", None),
        ("Answer: 3x", None),
        ("The answer is 2:00 pm", None),
        ("The answer is 12-13", None),
        ("The answer is 3/4.", "3/4"),
        ("The answer is 6/4.", "3/2"),
        ("The answer is 3/0.", None),
        ("answer is \\frac{3}{4}", "3/4"),
        ("Answer: 12 - done", "12"),
        ("Answer: -42", "-42"),
        ("Answer: −42", "-42"),
        ("the answer is 7, because", "7"),
        ("答案：４２。", "42"),
        ("【答案】42。", "42"),
        ("The answer is 3½.", None),
        ("The answer is 3² + 1", None),
        ("\\boxed{42}", "42"),
        ("<answer>42</answer>", "42"),
        ("42", "42"),
        ("12 is the sum", None),
    ],
)
def test_final_answer_reads(text, answer):
    """https://github.com/open-compass/opencompass/issues/2647 (a separator splits the number)"""
    assert answer_of(NUMBER, text) == answer


def test_a_number_waits_while_digits_may_come():
    committer = Committer(NUMBER, thinking=False)
    for piece in ("Answer: 1", ",", "200", "."):
        assert committer.feed(piece) is None
    commit = committer.feed("5 km")
    assert commit.answer == "1200.5"
    assert commit.position == len("Answer: 1,200.5 ")


def test_equality_is_numeric():
    assert NUMBER.equal("0.75", "3/4")
    assert NUMBER.score("1200", "$1,200")
    assert not NUMBER.equal("75", "0.75")
