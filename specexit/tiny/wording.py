"""The sentences of the problems. The shifted set has its own, made of words that training knows."""

from __future__ import annotations

import random
from collections.abc import Sequence

NAMES = ("Mia", "Tom", "Ana", "Ben", "Zoe", "Sam", "Lily", "Max")
THINGS = ("coins", "shells", "cards", "stamps", "beads", "apples")
GOODS = ("pens", "books", "cups", "maps", "caps", "toys")

_ASK_VALUE = ("Compute {}.", "What is {}?", "Find the value of {}.")
_ASK_VALUE_SHIFTED = ("What is the value of {} now?", "Find {}.")
_GAIN = ("{n} finds {b} more.", "{n} buys {b} more.", "{n} gets {b} more.")
_GAIN_SHIFTED = ("Then {n} gets {b} {t}.", "Then {n} finds {b} {t} more.")
_LOSS = ("{n} loses {b}.", "{n} gives away {b}.", "{n} sells {b}.")
_LOSS_SHIFTED = ("Then {n} loses {b} {t}.", "Then {n} sells {b} {t}.")
_GROW = ("Then {n} has {b} times as many.", "The pile grows to {b} times its size.")
_GROW_SHIFTED = ("Now the pile grows to {b} times its size.",)


def expression(
    rng: random.Random, start: int, changes: Sequence[tuple[str, int]], shifted: bool
) -> str:
    text, last = str(start), ""
    for op, value in changes:
        if op == "*" and last in ("+", "-"):
            text = f"({text})"
        text, last = f"{text}{op}{value}", op
    return rng.choice(_ASK_VALUE_SHIFTED if shifted else _ASK_VALUE).format(text)


def one_person(
    rng: random.Random, start: int, changes: Sequence[tuple[str, int]], shifted: bool
) -> str:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    sentences = [f"{name} has {start} {things}."]
    for op, value in changes:
        pool = {
            "+": _GAIN_SHIFTED if shifted else _GAIN,
            "-": _LOSS_SHIFTED if shifted else _LOSS,
            "*": _GROW_SHIFTED if shifted else _GROW,
        }[op]
        sentences.append(rng.choice(pool).format(n=name, b=value, t=things))
    sentences.append(f"How many {things} does {name} have now?")
    return " ".join(sentences)


def shop(rng: random.Random, bought: Sequence[tuple[int, int]], paid: int, shifted: bool) -> str:
    """``bought``: (price, pieces) of each good; ``paid`` is 0 where the total is asked."""
    name, goods = rng.choice(NAMES), rng.sample(GOODS, len(bought))
    pairs = list(zip(goods, bought, strict=True))
    if shifted:
        sentences = [
            f"{name} buys {pieces} {good} at {price} each." for good, (price, pieces) in pairs
        ]
    else:
        sentences = [f"The {good} cost {price} each." for good, (price, _) in pairs]
        items = [f"{pieces} {good}" for good, (_, pieces) in pairs]
        sentences.append(f"{name} buys {' and '.join(items)}.")
    if paid:
        sentences.append(f"{name} pays with {paid}. How much is left?")
    else:
        sentences.append(rng.choice(("What is the total?", "How much is it?")))
    return " ".join(sentences)
