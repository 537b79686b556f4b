"""The streaming automaton against RE2, and patterns that mean harm."""

from __future__ import annotations

import random
import time

import pytest

from specexit import Committer, contract
from specexit.contracts import ContractError
from specexit.contracts.automaton import Automaton
from specexit.contracts.pattern import compile_pattern
from specexit.contracts.search import Search

from .streams import answer_of


def regex(pattern: str, **options):
    return contract({"type": "regex", "pattern": pattern, **options})


@pytest.mark.parametrize("pattern", ["(yes|y)", "(y|yes)"])
def test_the_order_of_alternatives_decides_nothing(pattern):
    """https://github.com/cesanta/slre/issues/12"""
    for text in ("yes", "yes.", "so yes"):
        assert answer_of(regex(pattern), text) == "yes"
    assert answer_of(regex(pattern), "yet") == "y"


def random_pattern(rng: random.Random, depth: int) -> str:
    pick = rng.random()
    if depth == 0 or pick < 0.35:
        return rng.choice(
            ["a", "b", "c", "[ab]", "[^a]", ".", r"\n", " ", r"\w", r"\d", r"\b", "ab", "^", "$"]
        )
    one = random_pattern(rng, depth - 1)
    if pick < 0.55:
        return one + random_pattern(rng, depth - 1)
    if pick < 0.7:
        return f"(?:{one}|{random_pattern(rng, depth - 1)})"
    if pick < 0.8:
        return f"({one})"
    if pick < 0.94:
        return f"(?:{one}){rng.choice('*+?')}"
    return f"(?:{one}){{{rng.randint(0, 2)},{rng.randint(2, 3)}}}"


def search(automaton: Automaton, pieces: list[str]):
    machine = Search(automaton)
    for piece in pieces:
        found = machine.feed(piece)
        if found is not None:
            return found.groups
    found = machine.close()
    return None if found is None else found.groups


def test_the_automaton_agrees_with_re2_for_every_cut():
    re2 = pytest.importorskip("re2")
    options = re2.Options()
    options.longest_match = True
    options.log_errors = False
    rng = random.Random(7)
    compared = found = 0
    while compared < 4_000:
        pattern = rng.choice(["", "(?m)", "(?i)", "(?s)"]) + random_pattern(rng, 3)
        automaton = Automaton(compile_pattern(pattern), 1_000)
        if automaton.nullable():
            continue
        oracle = re2.compile(pattern, options)
        for _ in range(8):
            text = "".join(rng.choice("aabbc1 \nAB") for _ in range(rng.randint(0, 14)))
            match = oracle.search(text)
            whole = search(automaton, [text])
            assert (whole and whole[0]) == (match and match.group(0)), (pattern, text)
            at = rng.randint(0, len(text))
            for _ in range(2):  # what the first time remembers serves the second time
                assert search(automaton, list(text)) == whole, (pattern, text)
                assert search(automaton, [text[:at], text[at:]]) == whole, (pattern, text)
            compared += 1
            found += match is not None
    assert found > compared / 4


def test_groups_name_the_answer():
    assert answer_of(regex(r"x=(\d+);", group=1), "so x=12; y") == "12"
    assert answer_of(regex(r"x=(?P<v>\d+)\b", group="v"), "so x=12 y") == "12"
    assert answer_of(regex(r"x=(?P<v>\d+)\b", group="v"), "so x=12") == "12"


def test_an_open_end_waits():
    committer = Committer(regex(r"id: \d+"), thinking=False)
    assert committer.feed("id: 12") is None
    assert committer.feed("3 ").answer == "id: 123"


def test_max_chars_bounds_the_match_and_the_memory():
    bounded = regex("<[^>]*>|b+", max_chars=8)
    assert answer_of(bounded, "<" + "a" * 20 + ">bb.") == "bb"
    assert answer_of(bounded, "b" * 20) == "b" * 8
    committer = Committer(regex("<[^>]*>", max_chars=100), thinking=False)
    for _ in range(2_000):
        committer.feed("<aaaa")
    assert sum(map(len, committer._machine._search._kept)) <= 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "a*"}, "pattern: matches the empty text"),
        ({"pattern": "^"}, "pattern: matches the empty text"),
        ({"pattern": "("}, r"pattern: missing '\)'"),
        ({"pattern": "a)"}, r"pattern: unmatched '\)'"),
        ({"pattern": "[a"}, "pattern: missing"),
        ({"pattern": "*a"}, "pattern: nothing to repeat"),
        ({"pattern": "a{2,1}"}, "pattern: repeat bounds"),
        ({"pattern": "a{2000}"}, "pattern: repeats more than"),
        ({"pattern": "a{"}, "pattern: '{' is not a repeat"),
        ({"pattern": "a+?"}, "pattern: lazy and possessive"),
        ({"pattern": r"(a)\1"}, r"pattern: escape \\1 is not supported"),
        ({"pattern": "(?<=a)b"}, "pattern: look-around"),
        ({"pattern": "(?<!a)b"}, "pattern: look-around"),
        ({"pattern": r"\p{L}"}, "pattern: escape"),
        ({"pattern": r"\xz"}, "pattern: .* hexadecimal"),
        ({"pattern": "[[:alpha:]]"}, "pattern: POSIX"),
        ({"pattern": "((a{1,30}){1,30}){1,30}"}, "pattern: the pattern needs more than"),
        ({"pattern": "(" * 80 + "a" + ")" * 80}, "pattern: groups nested deeper"),
        ({"pattern": "a" * 1001}, "pattern: 1001 characters"),
        ({"pattern": 3}, "pattern: 3 is not a text"),
        ({"pattern": "a", "group": 1}, "group: 1 is not an integer"),
        ({"pattern": "a", "group": "x"}, "group: the pattern has no group named 'x'"),
        ({"pattern": "a", "max_chars": 0}, "max_chars: 0 is not"),
    ],
)
def test_wrong_patterns_are_refused_by_field(options, message):
    with pytest.raises(ContractError, match=r"^contract\." + message):
        contract({"type": "regex", **options})


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$b",
        "(a|aa)+c",
        "(a|a)*b(a|b){12}c",
        "(a|b)*a(a|b){14}c",
        "(.*)(.*)(.*)(.*)x=y",
        "(a?){50}a{50}c",
    ],
)
def test_patterns_that_blow_up_a_backtracker_stay_linear(pattern):
    rng = random.Random(1)
    text = "".join(rng.choice("ab") for _ in range(4_000))
    committer = Committer(regex(pattern, max_chars=200), thinking=False)
    start = time.process_time()
    committer.feed(text)
    committer.close()
    assert time.process_time() - start < 10


def test_an_older_attempt_that_lives_beside_a_match_keeps_its_text():
    """The match of a younger attempt stands; the older one may still win, and then does."""
    pattern = regex("<[^>]*>|b+")
    for text, answer in (("x <abc> y", "<abc>"), ("<aab", "b"), ("<aab>", "<aab>")):
        assert answer_of(pattern, text) == answer


def test_deltas_that_never_come_again_are_forgotten():
    committer = Committer(regex("<[^>]*>", max_chars=100), thinking=False)
    machine = committer._machine._automaton
    for number in range(45_000):
        committer.feed(f"q{number}")
    assert machine._cached <= 20_001
    assert len(machine.root("a").leaps) <= 20_001
    assert committer.feed(" <x>").answer == "<x>"


def test_large_state_sets_count_for_more():
    committer = Committer(regex("(a|b)*a(a|b){80}c"), thinking=False)
    rng = random.Random(2)
    for _ in range(6_000):
        committer.feed(rng.choice("ab"))
    nodes = committer._machine._automaton._nodes.values()
    assert sum(len(group) for node in nodes for group in node.groups) < 200_000
