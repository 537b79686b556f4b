"""The response's record, the raw signals kept for replay, the counters, the metrics."""

from __future__ import annotations

import pytest

from inference.vllm.metrics import metrics
from inference.vllm.record import Event, Journal, clipped

INJECTED = Event("injected", 12, 12, 2, (0.9, 0.5, 30.0))
NATURAL = Event("natural", 20, 18, 3, (0.8, 0.9, 5.0))


def test_record_says_none_until_a_thinking_ends() -> None:
    journal = Journal(keep_signals=False)
    journal.open("a")
    assert journal.take_changes()["records"] == {"a": {"exit": "none", "injected": []}}
    assert journal.take_changes() == {}
    journal.note("a", INJECTED)
    assert journal.take_changes()["records"]["a"] == {
        "exit": "injected",
        "injected": [12],
        "position": 12,
        "think_tokens": 12,
        "boundary": 2,
        "signals": {"confidence": 0.9, "progress": 0.5, "remain": 30.0},
        "saved_estimate": 30.0,
    }


def test_record_of_a_reopened_thinking_keeps_all_injected_ends() -> None:
    journal = Journal(keep_signals=False)
    journal.open("a")
    journal.note("a", INJECTED)
    journal.note("a", NATURAL)
    record = journal.take_changes()["records"]["a"]
    assert record["exit"] == "natural"
    assert record["injected"] == [12]
    assert "saved_estimate" not in record
    assert journal.counters["think_tokens"] == 18


def test_counters_tell_how_requests_ended() -> None:
    journal = Journal(keep_signals=False)
    for name, event in (("a", INJECTED), ("b", NATURAL), ("c", None)):
        journal.open(name)
        if event is not None:
            journal.note(name, event)
        journal.close(name)
    wanted = {"requests": 3, "finished": 3, "exits_injected": 1, "exits_natural": 1}
    assert {k: journal.counters[k] for k in wanted} == wanted
    assert journal.counters["exits_none"] == 1
    assert journal.take_signals() == {}


def test_signals_of_finished_requests_are_given_once() -> None:
    journal = Journal(keep_signals=True)
    journal.open("a")
    journal.open("b")
    journal.store("a", [(0.1, 0.2, 3.0)], [1])
    journal.close("a")
    taken = journal.take_signals()
    assert taken.keys() == {"a"}
    assert taken["a"]["signals"] == [[0.1, 0.2, 3.0]]
    assert journal.take_signals() == {}


def test_partial_prompt_is_flagged() -> None:
    journal = Journal(keep_signals=False)
    journal.open("a")
    journal.mark_partial("a", 7)
    assert journal.take_changes()["records"]["a"]["prompt_missing"] == 7


def test_metrics_count_exits_signals_and_contract_stops() -> None:
    from prometheus_client import REGISTRY

    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    names = {
        "specexit_requests_total": {"exit": "injected"},
        "specexit_contract_stops_total": {"contract": "choice"},
        "specexit_exit_remain_sum": {},
        "specexit_think_tokens_count": {},
        "specexit_step_seconds_total": {},
    }
    collectors = metrics()
    before = {n: value(n, **labels) for n, labels in names.items()}
    journal = Journal(keep_signals=False)
    journal.open("a")
    journal.note("a", INJECTED)
    collectors.observe(journal.take_changes()["records"]["a"], "contract:choice")
    collectors.observe(None, 508)  # a stop token of a request without SpecExit
    collectors.add_steps(3, 0.25)
    after = {n: value(n, **labels) - before[n] for n, labels in names.items()}
    assert after == pytest.approx(dict(zip(names, (1, 1, 30.0, 1, 0.25), strict=True)))


def test_a_think_end_behind_the_last_token_is_no_part_of_the_record() -> None:
    """A step accepts more than `max_tokens` leaves room for: what was cut off did not happen."""
    from inference.vllm.scheduler import clipped

    cut = {"exit": "injected", "injected": [18, 90], "position": 90, "think_tokens": 70}
    before = {"exit": "injected", "injected": [18], "position": 18, "think_tokens": 15}
    assert clipped(cut, 90, before) == before
    assert clipped(cut, 91, before) == cut
    assert clipped({**cut, "injected": [90]}, 90, {"exit": "none"}) == {
        "exit": "none",
        "injected": [],
    }


def test_an_exit_behind_the_last_token_is_not_told() -> None:
    record = {"exit": "injected", "injected": [7], "position": 7, "prompt_missing": 2}
    assert clipped(record, 8) == record
    assert clipped(record, 7) == {"exit": "none", "injected": [], "prompt_missing": 2}
    again = {**record, "injected": [3, 7]}
    before = {"exit": "injected", "injected": [3], "position": 3}
    assert clipped(again, 5, before) == {**before, "prompt_missing": 2}
