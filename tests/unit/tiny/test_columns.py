from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specexit.tiny.columns import apply, forgets_carry, work

number = st.integers(0, 999)


@given(number, number)
def test_columns_add_and_subtract_exactly(a: int, b: int) -> None:
    assert work(a, "+", b)[1] == a + b
    high, low = max(a, b), min(a, b)
    assert work(high, "-", low)[1] == high - low


@given(number, st.integers(0, 9))
def test_columns_multiply_by_one_digit_exactly(a: int, b: int) -> None:
    assert work(a, "*", b)[1] == a * b


@given(number, number)
def test_every_written_column_is_true(a: int, b: int) -> None:
    for text in (work(a, "+", b)[0], work(max(a, b), "-", min(a, b))[0], work(a, "*", b % 10)[0]):
        for column in text.split(", "):
            left, right = column.split(" ")[1].split("=")
            assert eval(left) == int(right)


@given(number, number)
def test_a_forgotten_carry_costs_ten(a: int, b: int) -> None:
    if forgets_carry(a, "+", b):
        assert work(a, "+", b, drop_carry=True)[1] == a + b - 10


def test_only_adding_a_number_that_ends_in_nine_slips() -> None:
    assert forgets_carry(45, "+", 39)
    assert not forgets_carry(40, "+", 39)  # nothing to carry
    assert not forgets_carry(45, "+", 38)
    assert not forgets_carry(45, "-", 39)
    assert not forgets_carry(5, "+", 39)  # no tens column of its own


@pytest.mark.parametrize(("a", "op", "b"), [(3, "-", 4), (3, "*", 12)])
def test_work_that_does_not_exist_is_refused(a: int, op: str, b: int) -> None:
    with pytest.raises(ValueError, match=f"{a}"):
        work(a, op, b)


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="'/'"):
        apply(1, "/", 2)
