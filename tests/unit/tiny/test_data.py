from __future__ import annotations

import re

import pytest

from specexit.errors import ConfigError
from specexit.tiny import questions
from specexit.tiny.data import SPLITS, Split, split_of


def test_the_same_seed_gives_the_same_questions_and_another_seed_others() -> None:
    assert questions("heldout", 40, 1) == questions("heldout", 40, 1)
    first = {q["question"] for q in questions("heldout", 40, 1)}
    assert len(first & {q["question"] for q in questions("heldout", 40, 2)}) < 10


def test_fewer_questions_are_a_prefix_of_more() -> None:
    assert questions("train", 10, 3) == questions("train", 25, 3)[:10]


@pytest.mark.parametrize("split", SPLITS)
def test_sets_are_disjoint_by_the_questions_hash(split: Split) -> None:
    records = questions(split, 200, 0)
    assert {split_of(q["question"]) for q in records} == {split}
    assert len({q["question"] for q in records}) == len(records)
    assert len({q["id"] for q in records}) == len(records)


def test_records_carry_what_the_data_builder_reads() -> None:
    for record in questions("heldout", 30, 0):
        assert record["contract"] == "boxed_integer"
        assert re.fullmatch(r"\d{1,3}", record["gold"])
        assert record["family"] in ("calculation", "shopping")
        assert record["steps"] < record["derivation_end"] < record["paragraphs"]
        # a wrong first pass has its correction still to come
        assert (record["first_pass_end"] < record["derivation_end"]) == record["slip"]


def test_the_shifted_set_is_longer_slips_more_and_speaks_differently() -> None:
    main, shifted = questions("heldout", 600, 0), questions("shifted", 400, 0)
    assert 0.03 < sum(q["slip"] for q in main) / 600 < 0.08
    assert 0.18 < sum(q["slip"] for q in shifted) / 400 < 0.32
    assert min(q["steps"] for q in shifted) == 4

    def shapes(records: list[dict[str, object]]) -> set[str]:
        """First sentence that differs by set: the question without numbers and names."""
        return {
            re.sub(r"\d+|[A-Z]\w+", "_", sentence)
            for q in records
            for sentence in re.findall(r"[^.?]+[.?]", str(q["question"]))[1:-1]
        }

    assert not shapes(main) & shapes(shifted) - {" _ pays with _."}


def test_unknown_sets_are_refused() -> None:
    with pytest.raises(ConfigError, match="'test' is not one of train, heldout, shifted"):
        questions("test", 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="n: -1"):
        questions("train", -1)
