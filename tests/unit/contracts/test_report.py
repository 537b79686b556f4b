"""Reports: fields, sections, and what ends them."""

from __future__ import annotations

import time

import pytest

from specexit import Committer, contract
from specexit.contracts import ContractError

from .streams import answer_of, check

REPORT = contract(
    {
        "type": "report",
        "fields": ["Status", "Files changed"],
        "sections": ["Summary", "Next steps"],
        "values": {"Status": ["done", "blocked"]},
        "end": "END OF REPORT",
    }
)
GOOD = """# Report
**Status:** Done
- Files changed: a.py, b.py

## Summary
It works.

Status: blocked

## 2. Next steps
- none
END OF REPORT
and more"""
ANSWER = {
    "Status": "done",
    "Files changed": "a.py, b.py",
    "Summary": "It works.\n\nStatus: blocked",
    "Next steps": "- none",
}


def test_report_reads():
    commit = check(REPORT, GOOD, rounds=3)
    assert commit.answer == ANSWER
    assert GOOD[commit.position :] == "\nand more"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("## Summary", "**Summary**"),
        ("## Summary", "Summary:"),
        ("## Summary", "### SUMMARY ###"),
        ("## Summary", "**Summary:**"),
        ("**Status:** Done", "Status: maybe\nStatus: done."),
        ("**Status:** Done", "Status：done"),
        ("**Status:** Done", "1. `Status`: **Done**"),
        ("**Status:** Done", "## Status: done"),
        ("It works.", "It works."),
    ],
)
def test_report_reads_through_markdown(old, new):
    assert answer_of(REPORT, GOOD.replace(old, new), rounds=2) == ANSWER


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("**Status:** Done", "Status: maybe"),
        ("**Status:** Done", "Status:"),
        ("**Status:** Done", "```\nStatus: done\n```"),
        ("It works.\n\nStatus: blocked", "\n"),
        ("## 2. Next steps", "## Later"),
        ("- Files changed", "- Changed"),
    ],
)
def test_a_missing_part_means_no_answer(old, new):
    text = GOOD.replace(old, new)
    if "Status" in old and "done" not in new.replace("```\nStatus: done", ""):
        text = text.replace("Status: blocked", "")
    assert answer_of(REPORT, text, rounds=2) is None


def test_a_fence_in_a_section_is_text():
    text = GOOD.replace("It works.", "```\n# a comment\nEND OF REPORT\n```")
    assert "# a comment" in answer_of(REPORT, text, rounds=2)["Summary"]


def test_the_last_section_waits_for_what_ends_it():
    last = contract({"type": "report", "sections": ["Summary"]})
    committer = Committer(last, thinking=False)
    assert committer.feed("## Summary\nfine\n\nand more\n") is None
    assert committer.is_completed
    assert committer.feed("## Other\n").answer == {"Summary": "fine\n\nand more"}
    assert answer_of(last, "## Summary\nfine") == {"Summary": "fine"}


def test_fields_alone_commit_at_the_end_of_their_line():
    fields = contract({"type": "report", "fields": ["Verdict"]})
    committer = Committer(fields, thinking=False)
    assert committer.feed("Verdict: pa") is None
    assert committer.feed("ss\nx").answer == {"Verdict": "pass"}


def test_equality_ignores_blanks():
    assert REPORT.equal(ANSWER, {**ANSWER, "Summary": "It  works. Status: blocked"})
    assert not REPORT.valid({"Status": "done"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "fields: name at least one field"),
        ({"fields": "x"}, "fields: not a list"),
        ({"fields": ["a", "A"]}, r"fields\[1\]: 'A' is there twice"),
        ({"fields": ["a"], "sections": ["a"]}, r"sections\[0\]: 'a' is there twice"),
        ({"fields": ["a:"]}, r"fields\[0\]: 'a:' holds one of"),
        ({"fields": ["a"], "values": {"b": ["x"]}}, r"values\.b: no such field"),
        ({"fields": ["a"], "values": {"a": "x"}}, r"values\.a: not a list"),
        ({"fields": ["a"], "end": 3}, "end: not a text"),
    ],
)
def test_wrong_options_are_refused_by_field(options, message):
    with pytest.raises(ContractError, match=r"^contract\." + message):
        contract({"type": "report", **options})


def test_specs_go_round():
    assert contract(REPORT.spec()) == REPORT


def test_long_lines_take_linear_time():
    committer = Committer(REPORT, thinking=False)
    start = time.process_time()
    for text in ("# " + " " * 50_000 + "x\n", "*" * 50_000 + "\n", "a " * 25_000 + ":\n"):
        committer.feed(text)
    assert time.process_time() - start < 2


def test_past_its_limit_nothing_is_kept():
    bounded = contract({"type": "report", "sections": ["Plan"], "fields": ["X"], "max_chars": 100})
    committer = Committer(bounded, thinking=False)
    committer.feed("# Plan\n")
    for _ in range(1_000):
        committer.feed("a line\n")
    assert len(committer._machine._section) < 100
    assert committer.close() is None
