"""Choices: cues, dress, scripts, and words that only look like letters."""

from __future__ import annotations

import pytest

from specexit import Committer, contract
from specexit.contracts import ContractError

from .streams import answer_of, check

TEN = contract({"type": "choice", "letters": "A-J"})

STATED = [
    ("The answer is B because a car moves.", "B"),
    ("The answer is C because I think so.", "C"),
    ("Answer seems to be A.", "A"),
    ("Answer seems odd.", None),
    ("ANSWER: b", "B"),
    ("Answer: this asks for a colour\nANSWER: B", "B"),
    ("故选B", "B"),
    ("因此选择Ｄ。", "D"),
    ("只有选项C是对", "C"),
    ("选项C是对的吗", None),
    ("答案：Ｂ", "B"),
    ("答案是（ｃ）。", "C"),
    ("Answer: Let's think", None),
    ("Answer: (b)", "B"),
    ("Answer: [b]", "B"),
    ("Answer - B\n", "B"),
    ("**Answer:** B", "B"),
    ("**Answer**: B\n", "B"),
    ("**Answer: (C)**", "C"),
    ("The correct answer is option **D**.", "D"),
    ("The correct option is: D)", "D"),
    ("Let's check each option:\n\nA. no\nB. yes\n\nThe answer is B.", "B"),
    ("FINAL ANSWER: H", "H"),
    ("FINAL ANSWER: Hello", None),
    ("Final Answer: **J. foo**", "J"),
    ("Answer:\n\nA. foo", "A"),
    ("Answer:\n\nA planet", None),
    ("Answer: I think it is C", None),
    ("Answer: I", "I"),
    ("The answer is I.", "I"),
    ("The answer is a car", None),
    ("the answer is a.", "A"),
    ("answer: A because it is", "A"),
    ("The answer is A, clearly", "A"),
    ("The answer is A or B", None),
    ("The answer is B or C.", None),
    ("Answer: C or D", None),
    ("Answer: B/C", None),
    ("Answer: (A) or (b)", None),
    ("Answer: **B** and **C**.", None),
    ("Answer: B, C, and D.", None),
    (r"\boxed{A, B}", None),
    ("The answer is A & B", None),
    ("答案是A还是B？", None),
    ("The answer is B or C. Answer: D", "D"),
    ("The answer is B and I am sure", "B"),
    ("The answer is C, D is wrong", "C"),
    ("The answer is C, and D is wrong", "C"),
    ("The answer is B or so", "B"),
    ("The right answer is 'C'", "C"),
    ("{'answer': 'C'}", "C"),
    ("The answer is 'A' because", "A"),
    ("The answer is B's", None),
    ("Answer: __C__ ", "C"),
    ("【答案】C", "C"),
    ("**答案**：C", "C"),
    ("回答：C", "C"),
    ("The answer to the question is C.", "C"),
    ("The answer would be C.", "C"),
    ("The answer is C-section", None),
    ("The answer is BD.", None),
    ("The answer is not B. Answer: C ", "C"),
    ("Option B is wrong. Answer is C\n", "C"),
    (r"\boxed{D}", "D"),
    (r"\boxed{\text{D}}", "D"),
    (r"The answer is $\boxed{C}$.", "C"),
    (r"\boxed{\textbf{(C) 12}}", "C"),
    ("<answer> E </answer>", "E"),
    ("B", "B"),
    ("(B)", "B"),
    ("**B**\n\nBecause", "B"),
    ("C. Planetary days will become shorter.", "C"),
    ("A. is wrong\nB. is right", None),
    ("C. Days get shorter.\n", "C"),
    ("A. is wrong, the answer is B.\n\nSo", "B"),
    ("A. is wrong, the answer is B.", "B"),
    ("So it must be this:\n\nB", "B"),
    ("A plan", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), STATED)
def test_choice_reads(text, answer):
    """Links of the public cases among these.

    https://github.com/EleutherAI/lm-evaluation-harness/pull/4188 (the article "a")
    https://github.com/groq/openbench/issues/348 ("Answer seems" is no S)
    https://github.com/UKGovernmentBEIS/inspect_ai/pull/3910 (lower case, a prose line first)
    https://github.com/open-compass/opencompass/pull/2600 (Chinese cues; "Let's" is no L)
    """
    assert answer_of(TEN, text) == answer


def test_the_letter_waits_for_what_ends_it():
    committer = Committer(TEN, thinking=False)
    assert committer.feed("The answer is B") is None
    assert committer.is_completed
    assert committer.feed("ut we") is None
    assert not committer.is_completed
    committer.reset()
    committer.feed("The answer is B")
    assert committer.feed(" because").position == len("The answer is B ")


def test_a_single_letter_is_a_set():
    assert answer_of(contract({"type": "choice", "letters": "I"}), "Answer: I") == "I"


def test_own_cues_replace_the_built_in_ones():
    own = contract({"type": "choice", "letters": "A-J", "cues": ["FINAL ANSWER:"]})
    assert answer_of(own, "The answer is B. Final  answer: **C**\n") == "C"
    assert answer_of(own, "The answer is B.") is None


def test_last_choice_is_taken_at_the_end():
    last = contract({"type": "choice", "evaluator": "last"})
    text = "The answer is B. No, the answer is C. Done"
    commit = check(last, text)
    assert (commit.answer, commit.position) == ("C", len(text))
    assert answer_of(last, "Answer: C\n\nA\n\nis a letter") == "C"


def test_equality_reads_through_the_dress():
    assert TEN.equal("(b)", "B")
    assert TEN.score("B", "B. blue")
    assert not TEN.equal("B", "K")
    assert not TEN.valid("Bob")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"letters": ""}, "letters: '' is not a set"),
        ({"letters": "AAB"}, "letters: 'AAB' is not a set"),
        ({"letters": ["A"]}, "letters: .* is not a text"),
        ({"cues": [""]}, r"cues\[0\]: not a text"),
        ({"cues": "x"}, "cues: not a list"),
    ],
)
def test_wrong_options_are_refused_by_field(options, message):
    with pytest.raises(ContractError, match=r"^contract\." + message):
        contract({"type": "choice", **options})
