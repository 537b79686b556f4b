"""Written column arithmetic on integers from 0 to 999, with or without the forgotten carry."""

from __future__ import annotations

COLUMN_NAMES = ("ones", "tens", "hundreds")


def apply(left: int, op: str, right: int) -> int:
    """The exact result of ``left op right`` for ``op`` in ``+ - *``."""
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    raise ValueError(f"op: {op!r} is not one of + - *")


def forgets_carry(left: int, op: str, right: int) -> bool:
    """Whether the reasoner slips on this step at first sight: it adds a number ending in nine.

    A rule of the problem alone, so that greedy decoding makes the mistake as well. Both numbers
    need a tens column, and the ones column must carry.
    """
    return op == "+" and right % 10 == 9 and left % 10 != 0 and min(left, right) >= 10


def work(left: int, op: str, right: int, *, drop_carry: bool = False) -> tuple[str, int]:
    """Column work as text, and its result.

    ``drop_carry`` forgets the carry out of the ones column of an addition (the slip). In a
    multiplication ``right`` has one digit. Raises ValueError for work that does not exist: a
    negative result, or a multiplier of two digits.
    """
    if op == "*":
        return _multiply(left, right)
    if op == "-" and left < right:
        raise ValueError(f"{left}-{right} is negative: the columns have no work for it")
    columns, result, carry = [], 0, 0
    digits = list(zip(_digits(left, right), _digits(right, left), strict=True))
    for place, (a, b) in enumerate(digits):
        mark = f"{op}1" if carry else ""
        if op == "+":
            total = a + b + carry
            columns.append(f"{COLUMN_NAMES[place]} {a}+{b}{mark}={total}")
            carry = total // 10
            digit = total if place == len(digits) - 1 else total % 10
            if drop_carry and place == 0:
                carry = 0
        else:
            borrow = int(a - b - carry < 0)
            digit = a + 10 * borrow - b - carry
            columns.append(f"{COLUMN_NAMES[place]} {a + 10 * borrow}-{b}{mark}={digit}")
            carry = borrow
        result += digit * 10**place
    return ", ".join(columns), result


def _multiply(left: int, right: int) -> tuple[str, int]:
    if not 0 <= right <= 9:
        raise ValueError(f"{left}*{right}: the multiplier must have one digit")
    columns, result, carry = [], 0, 0
    digits = _digits(left)
    for place, digit in enumerate(digits):
        total = digit * right + carry
        mark = f"+{carry}" if carry else ""
        columns.append(f"{COLUMN_NAMES[place]} {digit}*{right}{mark}={total}")
        result += (total if place == len(digits) - 1 else total % 10) * 10**place
        carry = total // 10
    return ", ".join(columns), result


def _digits(value: int, other: int = 0) -> list[int]:
    """Digits of ``value`` from the ones upwards, padded to the length of ``other``."""
    text = str(value).rjust(len(str(other)), "0")
    return [int(digit) for digit in reversed(text)]
