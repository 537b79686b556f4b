"""Importing existing outputs: oddities, reports, memory, real traces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_build.think_text import TREATMENT, take_apart
from specexit.cli import main
from specexit.dataset import read_traces
from specexit.files import read_json

BOX = "\n\n\\boxed{12}"


@pytest.mark.parametrize(
    ("text", "oddities"),
    [
        (f"<think>so 12</think>{BOX}", ()),
        (f"so 12</think>{BOX}", ("no_think_start",)),
        (BOX, ("no_thinking",)),
        ("<think>so 12", ("no_think_end",)),
        (f"<think> \n</think>{BOX}", ("empty_thinking",)),
        ("<think>so 12</think> \n", ("empty_answer",)),
        (f"<think>a</think>b<think>c</think>{BOX}", ("several",)),
        (f"<think>a</think>{BOX}<think>c", ("several", "unclosed")),
        ("", ("no_thinking",)),
    ],
)
def test_oddities_of_a_text(text: str, oddities: tuple[str, ...]) -> None:
    assert take_apart(text).oddities == oddities
    assert set(oddities) <= TREATMENT.keys()


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n\n", "\\boxed{1}", "é😀"])))
def test_any_mixture_of_tags_is_taken_apart(parts: list[str]) -> None:
    text = "".join(parts)
    parsed = take_apart(text)
    assert 0 <= parsed.start <= parsed.end <= len(text)
    assert "</think>" not in text[parsed.start : parsed.end]
    assert all(b <= parsed.end - parsed.start for b in parsed.boundaries(text))


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def test_the_report_counts_by_model_and_rows_keep_offsets(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "question": "A?", "gold": "12", "model": "m",
         "output": f"<think>one\n\ntwo</think>{BOX}"},
        {"id": "2", "question": "A?", "gold": "13", "model": "m",
         "output": f"<think>one</think>{BOX}"},
        {"id": "3", "question": "B?", "model": "n", "output": "<think>never"},
        {"id": "4", "question": "C?", "model": "n", "output": None},
    ]  # fmt: skip
    file = write(tmp_path / "o.jsonl", rows)
    report = tmp_path / "report.json"
    out = tmp_path / "out"
    code = main(["data", "import", file, "--out", str(out), "--contract", "boxed_integer",
                 "--grade", "--json", str(report), "-q"])  # fmt: skip
    assert code == 0
    stats = read_json(report)
    assert stats == read_json(out / "stats.json")
    assert stats["models"]["m"] == {"correct": 1, "graded": 2, "kept": 2, "records": 2}
    assert stats["models"]["n"] == {
        "correct": 0, "graded": 0, "kept": 0, "no_think_end": 1, "records": 1
    }  # fmt: skip
    assert stats["questions_dropped"] == {"no_output": 1}
    first = pq.read_table(out / "data" / "00000.parquet").to_pylist()[0]
    assert first["boundaries"] == [0, 5]
    assert first["output"][first["think_start"] : first["think_end"]] == "one\n\ntwo"
    assert (first["answer"], first["correct"]) == ('"12"', True)


def test_with_a_tokenizer_the_rows_are_traces(tmp_path: Path, tokenizer_path: Path) -> None:
    file = write(
        tmp_path / "o.jsonl",
        [{"question": "A?", "gold": "12", "output": f"<think>\none\n\ntwo\n</think>{BOX}"}],
    )
    args = ["--contract", "boxed_integer", "--tokenizer", str(tokenizer_path), "--grade", "-q"]
    assert main(["data", "import", file, "--out", str(tmp_path / "out"), *args]) == 0
    [trace] = read_traces(tmp_path / "out")
    assert (trace.drop_reason, trace.correct, trace.answer) == ("not_probed", True, '"12"')
    assert len(trace.boundaries) == 2
    assert read_json(tmp_path / "out" / "stats.json")["kept"] == 1


MEASURE = """
import resource, sys
from data_build.folder import RunFolder
from data_build.importing import ImportSettings, import_outputs
from specexit.config import parse
for file, out in zip(sys.argv[1::2], sys.argv[2::2]):
    settings = parse(ImportSettings, {"contract": "boxed_integer",
        "questions": [{"source": "jsonl", "path": file}]})
    with RunFolder(out) as folder:
        stats = import_outputs(settings, folder, progress=False)
    print(stats["traces"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_number_of_traces(tmp_path: Path) -> None:
    def synthetic(file: Path, n: int) -> str:
        paragraph = "I add the next number and write the sum down, then I go on.\n\n"
        with file.open("w") as f:
            for i in range(n):
                output = f"<think>\n{paragraph * (8 + i % 8)}</think>\n\n\\boxed{{{i % 1000}}}"
                f.write(json.dumps({"id": i, "question": f"Q{i}?", "output": output}) + "\n")
        return str(file)

    small, large = (synthetic(tmp_path / f"{n}.jsonl", n) for n in (4_000, 50_000))
    outs = [str(tmp_path / name) for name in ("a", "b")]
    command = [sys.executable, "-c", MEASURE, small, outs[0], large, outs[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (n_small, before), (n_large, after) = (map(int, x.split()) for x in done.stdout.splitlines())
    assert (n_small, n_large) == (4_000, 50_000)
    # The large file has 40 MB of text; all of it as rows would be several times that.
    assert after - before < 40, done.stdout


def test_every_real_trace_is_imported_without_a_crash(traces_dir: Path, tmp_path: Path) -> None:
    contracts = Path(__file__).parents[3] / "configs" / "data" / "import_contracts.yaml"
    out = tmp_path / "out"
    files = [str(f) for f in sorted(traces_dir.glob("*_dev.jsonl.gz"))]
    assert files
    args = ["--contracts", str(contracts), "--out", str(out), "-q"]
    assert main(["data", "import", *files, *args]) == 0
    stats = read_json(out / "stats.json")
    dropped = stats["questions_dropped"]
    total = sum(1 for f in files for _ in _lines(f))
    assert stats["traces"] + sum(dropped.values()) == total
    assert set(stats["oddities"]) <= TREATMENT.keys()
    assert stats["kept"] > 1000
    assert stats["oddities"]["no_think_end"] > 0
    assert stats["oddities"]["no_valid_answer"] > 0


def _lines(file: str) -> Any:
    import gzip

    return gzip.open(file, "rb")
