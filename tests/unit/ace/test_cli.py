"""The commands `specexit ace replay` and `specexit contract check`, run as a user does."""

from __future__ import annotations

import gzip
import json

import pytest

from specexit.ace import bench
from specexit.ace.bench import bench_committer
from specexit.cli import main

BOX = {"id": "1", "model": "m", "task": "math500", "kind": "math", "gold": "42"}
RECORDS = [
    {**BOX, "output": r"<think>\boxed{1}</think>It is \boxed{42}. As one can see, so it is."},
    {**BOX, "id": "2", "output": r"<think>x</think>It is \boxed{41}. No: \boxed{42}"},
    {**BOX, "id": "3", "output": r"<think>never ends \boxed{9}"},
    {**BOX, "id": "4", "output": None},
    {"id": "5", "model": "n", "task": "t", "kind": "freeform", "output": "hello"},
    {
        **BOX,
        "id": "6",
        "model": "n",
        "deltas": [["<think>", 0.1], ["</think>", 1], [r"\boxed{42}", 2], [" and on", 5]],
    },
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "outputs.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(record) + "\n" for record in RECORDS)
    return path


def test_replay_reports_a_row_per_contract_and_model(file, tmp_path, capsys):
    target = tmp_path / "rows.json"
    args = ["ace", "replay", str(file), "--json", str(target), "--show-disagreements", "-q"]
    assert main(args) == 0
    written = json.loads(target.read_text())
    first, second = written["rows"]
    assert (first["contract"], first["model"], first["n"]) == ("boxed_math", "m", 3)
    assert (first["committed"], first["unsound"]) == (2, 0)
    assert (first["faithful"], first["judged"]) == (1, 2)
    assert first["answer_tokens_saved"] > 10
    assert (second["model"], second["n"], second["ttva_s"]) == ("n", 1, 2.0)
    assert written["meta"]["skipped"] == 1
    assert [d["id"] for d in written["disagreements"]] == ["2"]
    out = capsys.readouterr().out
    assert "committed '41', grader '42'" in out
    assert "1 disagreements" in out


def test_a_copy_of_the_prompts_template_is_no_answer(tmp_path):
    output = '{"reasoning": "___", "answer": "___"}\n\n{"reasoning": "so", "answer": "3"}'
    record = {"id": "1", "model": "m", "task": "t", "kind": "json_answer", "output": output}
    path, target = tmp_path / "outputs.jsonl", tmp_path / "rows.json"
    path.write_text(json.dumps(record))
    assert main(["ace", "replay", str(path), "--json", str(target), "-q"]) == 0
    (row,) = json.loads(target.read_text())["rows"]
    assert (row["committed"], row["answer_tokens_saved"]) == (1, 0)


def test_replay_takes_a_contract_for_all(file, tmp_path):
    target = tmp_path / "rows.json"
    spec = '{"type": "regex", "pattern": "hel+o"}'
    assert main(["ace", "replay", str(file), "--contract", spec, "--json", str(target), "-q"]) == 0
    rows = json.loads(target.read_text())["rows"]
    assert [(row["model"], row["n"], row["committed"]) for row in rows] == [
        ("m", 3, 0),
        ("n", 2, 1),
    ]


def test_replay_says_what_is_wrong_with_a_file(tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"output": "x"}\n{"output": \n')
    assert main(["ace", "replay", str(bad), "-q"]) == 2
    assert "bad.jsonl:2: not JSON" in capsys.readouterr().err
    assert main(["ace", "replay", str(tmp_path / "none.jsonl"), "-q"]) == 2
    bad.write_text('{"output": "ab", "deltas": [["a", 1]]}\n')
    assert main(["ace", "replay", str(bad), "-q"]) == 2
    assert "do not add up" in capsys.readouterr().err


def test_contract_check_says_where_it_commits(tmp_path, capsys):
    text = tmp_path / "out.txt"
    text.write_text(r"<think>\boxed{1}</think>So \boxed{7}. Bye", encoding="utf-8")
    result = tmp_path / "r.json"
    args = ["contract", "check", "--contract", "boxed_integer", "--text", str(text)]
    assert main([*args, "--json", str(result)]) == 0
    assert '"7" committed at character 36 of 41' in capsys.readouterr().out
    assert json.loads(result.read_text())["position"] == 36
    assert main(["contract", "check", "--contract", "choice", "--text", "nothing"]) == 1
    assert main(["contract", "check", "--contract", "choise", "--text", "x"]) == 2
    assert "contract: 'choise' is unknown" in capsys.readouterr().err
    assert main(["contract", "check", "--contract", '{"type": "choice", "letters": 3}']) == 2
    assert "contract.letters: 3" in capsys.readouterr().err
    assert main(["contract", "check", "--contract", "choice"]) == 0
    assert main(["contract", "list"]) == 0
    assert "boxed_integer" in capsys.readouterr().out.split()


def test_bench_measures_cost_and_growth(monkeypatch):
    monkeypatch.delenv("SPECEXIT_TRACES", raising=False)
    monkeypatch.setattr(bench, "CONTRACTS", ("boxed_integer", "final_answer"))
    figures = bench_committer(repetitions=1, max_tokens=3_000, long_chars=4_000)
    assert figures["tokens"] == 3_000
    assert figures["texts"].startswith("made up")
    assert 0 < figures["cost_ratio_to_detokenise"] < 20
    assert 5 < figures["linearity_10x"] < 20
    assert set(figures["by_contract"]) == {"boxed_integer", "final_answer"}


def test_the_bench_command_writes_the_figures(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("SPECEXIT_TRACES", raising=False)
    monkeypatch.setattr(bench, "CONTRACTS", ("boxed_integer",))
    target = tmp_path / "figures.json"
    small = ["--repetitions", "1", "--max-tokens", "2000", "--long-chars", "2000"]
    assert main(["bench", "committer", "--json", str(target), *small]) == 0
    figures = json.loads(target.read_text())
    assert figures["cost_ratio_to_detokenise"] > 0
    assert "boxed_integer" in capsys.readouterr().out
