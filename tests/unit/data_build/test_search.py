"""Sufficient boundaries: every strategy against brute force on random agreement tables."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from data_build.config import Probe, Strategy
from data_build.search import (
    boundaries_to_probe,
    is_monotone,
    plan,
    spread,
    sufficient,
    thin,
)

tables = st.lists(st.booleans(), min_size=1, max_size=24)
# Tables that agree from some boundary on, as bisection assumes.
steps = st.tuples(st.integers(0, 20), st.integers(1, 20)).map(
    lambda x: [False] * x[0] + [True] * x[1]
)


def search(strategy: Strategy, table: list[bool], settings: Probe) -> dict[int, bool]:
    """Probe as the builder does; what is known at the end."""
    known: dict[int, bool] = {}
    grid = list(range(len(table)))
    while asked := plan(strategy, grid, known, settings):
        assert not set(asked) & known.keys()
        known.update({k: table[k] for k in asked})
    return known


def brute_force(table: list[bool]) -> int | None:
    for k in range(len(table)):
        if all(table[k:]):
            return k
    return None


@given(tables, st.integers(1, 5))
def test_stable_equals_brute_force(table: list[bool], window: int) -> None:
    known = search("stable", table, Probe(window=window))
    assert sufficient(known) == brute_force(table)


@given(tables, st.integers(1, 5))
def test_stable_probes_no_more_than_a_window_past_the_last_disagreement(
    table: list[bool], window: int
) -> None:
    k_star = brute_force(table)
    needed = len(table) - (k_star if k_star is not None else len(table)) + 1
    assert len(search("stable", table, Probe(window=window))) <= needed + window - 1


@given(tables, st.integers(1, 5))
def test_first_finds_the_first_that_agrees(table: list[bool], window: int) -> None:
    known = search("first", table, Probe(window=window))
    assert sufficient(known, "first") == next((k for k, a in enumerate(table) if a), None)


@given(tables)
def test_bisect_equals_stable_whatever_the_table(table: list[bool]) -> None:
    assert sufficient(search("bisect", table, Probe())) == brute_force(table)


@given(steps)
def test_bisect_with_spread_checks_needs_log_many_probes(table: list[bool]) -> None:
    known = search("bisect", table, Probe(verify="spread"))
    assert sufficient(known) == brute_force(table)
    assert len(known) <= 2 * math.log2(len(table)) + 4


def test_bisect_falls_back_where_it_finds_a_table_that_is_not_monotone() -> None:
    table = [False, False, True, True, False, True, True, True]
    known = search("bisect", table, Probe())
    assert not is_monotone(known)
    assert sufficient(known) == 5


@given(tables)
def test_all_probes_every_boundary(table: list[bool]) -> None:
    assert search("all", table, Probe()) == dict(enumerate(table))


@given(tables, st.integers(0, 30))
def test_spread_takes_new_boundaries_only(table: list[bool], count: int) -> None:
    known = search("stable", table, Probe())
    extra = spread(range(len(table)), known, count)
    assert len(extra) == min(count, len(table) - len(known))
    assert not set(extra) & known.keys()


def test_spread_does_not_change_the_sufficient_boundary() -> None:
    table = [True, False, True, True]
    known = search("stable", table, Probe(window=1))
    before = sufficient(known)
    known.update({k: table[k] for k in spread(range(4), known, 4)})
    assert sufficient(known) == before == 2


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 5), st.integers(0, 60))
def test_thinning_keeps_both_ends_and_the_gaps(gaps: list[int], every: int, min_gap: int) -> None:
    boundaries = [0]
    for gap in gaps:
        boundaries.append(boundaries[-1] + gap)
    grid = thin(boundaries, every, min_gap)
    assert grid[0] == 0
    assert grid[-1] == len(boundaries) - 1
    inner = grid[1:-1]
    assert all(k % every == 0 for k in inner)
    positions = [boundaries[k] for k in grid[:-1]]
    assert all(b - a >= min_gap for a, b in pairwise(positions))


def test_all_probes_every_boundary_whatever_thins_the_others() -> None:
    settings = Probe(every=2, min_gap_tokens=100)
    assert boundaries_to_probe("all", [0, 5, 9, 120], settings) == [0, 1, 2, 3]
    assert boundaries_to_probe("stable", [0, 5, 9, 120], settings) == [0, 3]
