"""Contracts made of contracts."""

from __future__ import annotations

import pytest

from specexit import Committer, contract
from specexit.contracts import Contract, ContractError, contract_class, names, register
from specexit.contracts.registry import _BUILT_IN

from .streams import answer_of, check

EITHER = contract(
    {"type": "any_of", "contracts": ["boxed_integer", {"type": "choice", "letters": "A-D"}]}
)
BOTH = contract(
    {
        "type": "all_of",
        "contracts": ["boxed_integer", {"type": "label", "labels": ["sure", "unsure"]}],
        "names": ["value", "how"],
    }
)


def test_any_of_takes_the_earliest():
    assert answer_of(EITHER, r"Answer: B. \boxed{3}") == "B"
    assert answer_of(EITHER, r"\boxed{3}. Answer: B.") == "3"
    assert answer_of(EITHER, "B") == "B"
    assert answer_of(EITHER, "none") is None
    assert EITHER.score("3", "003")
    assert EITHER.valid("C")
    assert not EITHER.valid("K")


def test_any_of_prefers_the_first_listed_at_the_same_character():
    one = {"type": "regex", "pattern": "a(b)", "group": 1}
    two = {"type": "regex", "pattern": "ab"}
    assert answer_of(contract({"type": "any_of", "contracts": [one, two]}), "xab") == "b"
    assert answer_of(contract({"type": "any_of", "contracts": [two, one]}), "xab") == "ab"


def test_all_of_waits_for_all():
    text = "Answer: sure. So \\boxed{12} it is"
    commit = check(BOTH, text)
    assert commit.answer == {"value": "12", "how": "sure"}
    assert text[: commit.position].endswith("\\boxed{12}")
    assert answer_of(BOTH, "Answer: sure.") is None
    assert answer_of(BOTH, "\\boxed{12} Answer: sure") == {"value": "12", "how": "sure"}
    assert BOTH.equal({"value": "012", "how": "SURE"}, {"value": 12, "how": "sure"})
    assert not BOTH.valid({"value": "12"})


def test_after_think_needs_no_help_from_the_caller():
    wrapped = contract({"type": "after_think", "contract": "boxed_integer", "thinking": True})
    committer = Committer(wrapped, thinking=False)
    assert committer.feed(r"\boxed{1}</think>") is None
    assert committer.feed(r"\boxed{2}").answer == "2"
    assert wrapped.project(r"\boxed{1}</think>\boxed{2}", thinking=False) == "2"


def test_marks_of_heuristics_go_up():
    guess = {"type": "boxed_integer", "evaluator": "last", "quiet_chars": 9}
    assert contract({"type": "any_of", "contracts": [guess, "choice"]}).heuristic
    assert contract({"type": "final_tag", "contract": guess}).heuristic
    assert not EITHER.heuristic


def test_specs_go_round():
    for made in (EITHER, BOTH):
        assert contract(made.spec()) == made


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "any_of"}, r"contract\.contracts: missing"),
        ({"type": "any_of", "contracts": []}, r"contract\.contracts: not a list of 1"),
        ({"type": "any_of", "contracts": ["choice"] * 17}, r"contract\.contracts: not a list of 1"),
        (
            {"type": "any_of", "contracts": ["choice", "chioce"]},
            r"contract\.contracts\[1\]: 'chioce'",
        ),
        (
            {"type": "any_of", "contracts": [{"type": "choice", "letters": ""}]},
            r"contract\.contracts\[0\]\.letters: ",
        ),
        (
            {"type": "all_of", "contracts": ["choice"], "names": ["a", "b"]},
            r"contract\.names: not 1 different",
        ),
        (
            {"type": "after_think", "contract": "choice", "thinking": "no"},
            r"contract\.thinking: 'no'",
        ),
    ],
)
def test_wrong_specs_are_refused_by_field(spec, message):
    with pytest.raises(ContractError, match="^" + message):
        contract(spec)


def test_a_contract_cannot_be_nested_without_end():
    spec = "choice"
    for _ in range(40):
        spec = {"type": "any_of", "contracts": [spec]}
    with pytest.raises(ContractError, match="nested deeper"):
        contract(spec)


def test_every_built_in_contract_says_what_it_is_sound_under():
    for name in _BUILT_IN:
        cls = contract_class(name)
        module = __import__(cls.__module__, fromlist=["x"])
        assert "commit" in module.__doc__, name
        assert "sound" in module.__doc__.lower(), name


def test_custom_contracts_register_by_name():
    from specexit.contracts.boxed import BoxedInteger

    class Even(BoxedInteger):
        name = "even_boxed_test"

        def normalise(self, answer):
            value = super().normalise(answer)
            return value if value is not None and int(value) % 2 == 0 else None

    register(Even)
    assert answer_of(contract("even_boxed_test"), r"\boxed{3} \boxed{4}") == "4"
    assert "even_boxed_test" in names()

    class Nameless(Contract):
        def acceptor(self):
            raise NotImplementedError

    with pytest.raises(ContractError, match="needs a name"):
        register(Nameless)
    Nameless.name = "choice"
    with pytest.raises(ContractError, match="built-in"):
        register(Nameless)
