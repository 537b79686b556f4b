"""Tokens, times and speed-ups of a commit."""

from __future__ import annotations

import pytest

from specexit.ace import Account, aggregate


def test_saved_tokens_count_the_overshoot():
    account = Account(full_tokens=100, commit_tokens=60, overshoot_tokens=4, valid=True)
    assert (account.generated_tokens, account.saved_tokens) == (64, 36)
    assert Account(full_tokens=100).saved_tokens == 0
    late = Account(full_tokens=100, commit_tokens=99, overshoot_tokens=9)
    assert late.generated_tokens == 100


def test_predicted_speedup_follows_the_design():
    account = Account(full_tokens=100, commit_tokens=60, overshoot_tokens=4)
    predicted = account.predicted_speedup(prefill_s=1.0, token_s=0.1, committer_s=0.01)
    assert predicted == pytest.approx((1 + 10) / (1 + 6.4 + 0.01))


def test_time_to_a_valid_answer_is_that_of_the_commit():
    early = Account(full_tokens=9, commit_tokens=5, valid=True, commit_s=1, end_s=2, full_s=4)
    assert early.ttva_s == 1
    assert early.measured_speedup == 2
    assert Account(full_tokens=9, valid=True, end_s=2).ttva_s == 2
    assert Account(full_tokens=9, end_s=2).ttva_s is None
    total = aggregate([early, Account(full_tokens=9, end_s=3)], wall_s=5)
    assert total["valid_answers_per_s"] == pytest.approx(0.2)
    assert (total["n"], total["valid"], total["saved_tokens"]) == (2, 1, 4)
    assert aggregate([])["ttva_s"] is None


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="commit_tokens: 11 is not in"):
        Account(full_tokens=10, commit_tokens=11)
