"""Reading questions: formats, bad rows, duplicates, splits."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_build.config import DataSettings
from data_build.questions import Question, Reader
from specexit.config import parse
from specexit.errors import ConfigError


def settings(*sources: dict[str, Any], **values: Any) -> DataSettings:
    return parse(
        DataSettings,
        {"target": "x", "contract": "boxed_integer", "questions": list(sources), **values},
    )


def read(*sources: dict[str, Any], **values: Any) -> tuple[list[Question], Reader]:
    reader = Reader(settings(*sources, **values))
    return list(reader), reader


ROWS = [{"id": f"a{i}", "question": f"Q{i}?", "gold": i, "level": i % 3} for i in range(30)]


def test_jsonl_gzip_parquet_and_datasets_folders_give_the_same_questions(tmp_path: Path) -> None:
    import datasets

    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_text(lines)
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as f:
        f.write(lines)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    expected, _ = read({"source": "jsonl", "path": str(tmp_path / "a.jsonl")})
    assert [q.id for q in expected] == [row["id"] for row in ROWS]
    assert expected[4].gold == "4"
    assert expected[4].meta == {"level": 1}
    for source in (
        {"source": "jsonl", "path": str(tmp_path / "*.jsonl.gz")},
        {"source": "parquet", "path": str(tmp_path / "a.parquet")},
        {"source": "datasets", "path": str(tmp_path / "saved")},
    ):
        assert read(source)[0] == expected


def test_bad_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    good = [{"id": "x", "question": "Q?"}, {"id": "y", "question": "R?"}]
    lines = [
        json.dumps(good[0]).encode(),
        b"{not json",
        b'{"id": "u", "question": "caf\xe9?"}',  # latin-1
        json.dumps({"id": "m"}).encode(),
        json.dumps({"id": "e", "question": "  "}).encode(),
        json.dumps({"id": "x", "question": "S?"}).encode(),
        json.dumps({"id": "z", "question": "Q?"}).encode(),
        json.dumps([1]).encode(),
        json.dumps({"id": "c", "question": "T?", "contract": "nonsense"}).encode(),
        json.dumps({"id": "w", "question": "lone \ud800 surrogate"}).encode(),
        json.dumps({"id": "o", "question": "O?", "output": 3}).encode(),
        json.dumps(good[1]).encode(),
    ]
    file.write_bytes(b"\n".join(lines))
    questions, reader = read({"source": "jsonl", "path": str(file)})
    assert [q.id for q in questions] == ["x", "y"]
    assert reader.dropped == {
        "not_json": 1,
        "not_utf8": 2,
        "missing_question": 2,
        "duplicate_id": 1,
        "duplicate_question": 1,
        "not_an_object": 1,
        "bad_contract": 1,
        "bad_output": 1,
    }
    assert "row 1" in reader.examples["not_json"]


def test_fields_are_mapped_and_messages_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    file.write_text(json.dumps({"key": 7, "chat": chat, "label": "B", "ask": None}) + "\n")
    fields = {"id": "key", "question": "ask", "messages": "chat", "gold": "label"}
    [question], _ = read(
        {"source": "jsonl", "path": str(file), "fields": fields}, system="Never used."
    )
    assert (question.id, question.question, question.gold) == ("7", "Why?", "B")
    assert question.messages == chat


def test_the_prompt_template_and_system_message_apply(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"question": "2+{x}?"}) + "\n")
    [question], _ = read(
        {"source": "jsonl", "path": str(file)}, system="Think.", prompt="{question} Box it."
    )
    assert [m["content"] for m in question.messages] == ["Think.", "2+{x}? Box it."]
    assert question.question == "2+{x}?"


def test_no_question_is_on_two_sides(write_questions: Callable[..., Path]) -> None:
    file = write_questions([{"id": str(i), "question": f"Q{i % 40}?"} for i in range(120)])
    questions, reader = read({"source": "jsonl", "path": str(file)})
    sides: dict[str, set[str]] = {}
    for q in questions:
        sides.setdefault(q.question, set()).add(q.split)
    assert all(len(splits) == 1 for splits in sides.values())
    assert {q.split for q in questions} == {"train", "calibration", "test"}
    assert reader.dropped["duplicate_question"] == 80


def test_a_forced_split_cannot_put_one_question_on_two_sides(
    write_questions: Callable[..., Path],
) -> None:
    file = str(write_questions([{"id": "1", "question": "Q?"}]))
    other = str(write_questions([{"id": "2", "question": " Q?"}], "other.jsonl"))
    questions, reader = read(
        {"source": "jsonl", "path": file, "split": "train"},
        {"source": "jsonl", "path": other, "split": "test"},
    )
    assert [q.split for q in questions] == ["train"]
    assert reader.dropped == {"duplicate_question": 1}
    recorded = str(
        write_questions([{"id": "3", "question": "Q?", "output": "x"}], "recorded.jsonl")
    )
    questions, reader = read(
        {"source": "jsonl", "path": recorded, "split": "train"},
        {"source": "jsonl", "path": file, "split": "test"},
    )
    assert [q.split for q in questions] == ["train"]
    assert reader.dropped == {"two_splits": 1}


def test_chats_with_one_last_message_and_outputs_of_one_question_are_kept(
    write_questions: Callable[..., Path],
) -> None:
    def chat(first: str) -> list[dict[str, str]]:
        contents = ((first, "user"), ("4", "assistant"), ("Are you sure?", "user"))
        return [{"role": role, "content": content} for content, role in contents]

    rows = [
        {"messages": chat("2+2?")},
        {"messages": chat("3+1?")},
        {"question": "Q?", "output": "<think>a</think>1"},
        {"question": "Q?", "output": "<think>b</think>1"},
    ]
    questions, reader = read({"source": "jsonl", "path": str(write_questions(rows))})
    assert reader.dropped == {}
    assert len({q.id for q in questions}) == 4


def test_a_missing_contract_or_file_is_an_error_that_names_the_fix(
    write_questions: Callable[..., Path],
) -> None:
    file = str(write_questions([{"question": "Q?"}]))
    with pytest.raises(ConfigError, match="set contract in the configuration"):
        read({"source": "jsonl", "path": file}, contract=None)
    with pytest.raises(ConfigError, match="no file matches"):
        read({"source": "jsonl", "path": file + "x"})


def test_contracts_can_go_by_a_column(write_questions: Callable[..., Path]) -> None:
    file = write_questions(
        [{"question": "Q?", "kind": "abcd"}, {"question": "R?", "kind": "unknown"}]
    )
    source = {
        "source": "jsonl",
        "path": str(file),
        "fields": {"contract": "kind"},
        "contracts": {"abcd": {"type": "choice"}},
    }
    assert [q.contract.name for q in read(source)[0] if q.contract] == ["choice", "boxed_integer"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "Say hi"}, "must contain {question}"),
        ({"fractions": [0.5, 0.1, 0.1]}, "add up to 1"),
        ({"engine": {"kind": "openai"}}, "needs endpoints"),
        ({"engine": {"kind": "openai", "endpoints": ["host:1"]}}, "http://"),
        ({"probe": {"strategi": "all"}}, "unknown key"),
        ({"probe": {"strategy": "some"}}, "probe.strategy"),
        ({"questions": [{"source": "tiny"}]}, "needs n"),
        ({"questions": [{"source": "tiny", "n": 1, "part": "dev"}]}, "heldout"),
        ({"questions": []}, "questions"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings({"source": "tiny", "n": 1}, **values) if "questions" not in values else parse(
            DataSettings, {"target": "x", **values}
        )
    assert message in str(error.value)
