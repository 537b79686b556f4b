"""Whole builds against a real local server: rows, costs, shards, merging, locks, bad questions."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_build.config import DataSettings
from data_build.finish import finish
from data_build.folder import FolderBusyError, RunFolder
from data_build.merging import merge
from data_build.run import run
from specexit.cli import main
from specexit.dataset import SCHEMA, Trace, read_traces
from specexit.errors import ConfigError
from specexit.files import read_json

from .scripted import ScriptedServer, question

Make = Callable[..., DataSettings]
Write = Callable[..., Path]


def texts(n: int) -> list[str]:
    return [question(i) + (" slip" if i % 5 == 4 else "") for i in range(n)]


def built(settings: DataSettings, out: Path, **kwargs: Any) -> dict[str, Any]:
    stats = run(settings, str(out), progress=False, **kwargs)
    assert stats is not None
    return stats


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted((folder / "data").glob("*.parquet"))}


def test_rows_hold_the_sufficient_boundary_of_brute_force(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    settings = settings_of(write_questions(texts(20)), [server.url])
    stats = built(settings, tmp_path / "out")
    traces = list(read_traces(tmp_path / "out"))
    assert [t.id for t in traces] == [f"q{i}" for i in range(20)]
    assert stats["traces"] == stats["kept"] == 20
    everything = settings_of(write_questions(texts(20)), [server.url], probe={"strategy": "all"})
    built(everything, tmp_path / "all")
    for trace, full in zip(traces, read_traces(tmp_path / "all"), strict=True):
        assert all(full.probed)
        brute = next(k for k in range(len(full.boundaries)) if all(full.trial_agrees[k:]))
        assert trace.k_star == full.k_star == brute
        assert trace.t_star == trace.boundaries[brute]
        assert trace.correct is True
        assert len(trace.progress) == len(trace.token_logprobs) == len(trace.thinking_ids)
    # A slip is corrected in the last paragraph: only the end of the thinking is sufficient.
    assert all(t.k_star == len(t.boundaries) - 1 for t in traces if "slip" in t.question)


def test_meta_and_sampling_travel_with_the_row(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    row = {"id": "a", "question": question(1), "family": "sum", "derivation_end": 4, "slip": False}
    built(settings_of(write_questions([row]), [server.url]), tmp_path / "out")
    [trace] = read_traces(tmp_path / "out")
    assert json.loads(trace.meta) == {"family": "sum", "derivation_end": 4, "slip": False}
    assert json.loads(trace.sampling or "")["temperature"] == 0


def test_parquet_loads_with_datasets_and_keeps_the_documented_schema(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    import datasets

    built(settings_of(write_questions(texts(10)), [server.url]), tmp_path / "out")
    loaded = datasets.load_dataset(
        "parquet",
        data_files=str(tmp_path / "out" / "data" / "*.parquet"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert len(loaded) == 10
    assert loaded.column_names == SCHEMA.names
    card = (tmp_path / "out" / "dataset_card.md").read_text()
    assert all(f"`{name}`" in card for name in SCHEMA.names)
    assert read_json(tmp_path / "out" / "provenance.json")["data_hash"]


def test_costs_add_up_to_what_the_server_saw(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    stats = built(settings_of(write_questions(texts(12)), [server.url]), tmp_path / "out")
    probes = [b for b in server.bodies if "vllm_xargs" in b]
    assert stats["probes"] == len(probes) == len(server.bodies) - 12
    assert stats["cost"]["probe_prompt_tokens"] == sum(len(b["prompt"]) for b in probes)
    assert stats["trace_tokens"] == sum(len(t.output_ids) for t in read_traces(tmp_path / "out"))
    assert json.loads(probes[0]["vllm_xargs"]["contract"]) == {"type": "boxed_integer"}
    naive = stats["all_boundaries_without_reuse"]["tokens"]
    assert stats["probe_tokens_computed"] < naive


def test_odd_outputs_are_counted_and_kept_for_the_statistics(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    odd = [f"{question(i)} {word}" for i, word in enumerate(["loop", "blank", "prose", "again"])]
    stats = built(settings_of(write_questions(odd), [server.url]), tmp_path / "out")
    assert stats["drop_reasons"] == {"empty_answer": 1, "no_think_end": 1, "no_valid_answer": 1}
    assert stats["several_thinks"] == 1
    assert (stats["traces"], stats["kept"]) == (4, 1)
    kept = [t for t in read_traces(tmp_path / "out") if t.keep]
    assert [t.id for t in kept] == ["q3"]


def test_a_prompt_that_does_not_fit_is_dropped(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    rows = [question(1), question(2) + " Think well." * 400]
    stats = built(settings_of(write_questions(rows), [server.url]), tmp_path / "out")
    assert stats["drop_reasons"] == {"too_long": 1}


def test_recorded_outputs_are_probed_but_not_generated(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    from .scripted import thinking

    asked = question(2)
    row = {"id": "r", "question": asked, "gold": None,
           "output": f"<think>\n{thinking(asked)}\n</think>\n\n\\boxed{{21}}"}  # fmt: skip
    stats = built(settings_of(write_questions([row]), [server.url]), tmp_path / "out")
    [trace] = read_traces(tmp_path / "out")
    assert trace.keep
    assert trace.token_logprobs == []
    assert len(trace.confidence) == len(trace.thinking_ids)
    assert stats["trace_tokens"] == 0
    assert all("vllm_xargs" in body for body in server.bodies)


def test_shards_of_one_folder_merge_to_the_same_bytes(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    settings = settings_of(write_questions(texts(30)), [server.url])
    whole = built(settings, tmp_path / "whole")
    for i in (1, 0, 2):
        assert run(settings, str(tmp_path / "parts"), shard=(i, 3), progress=False) is None
    merged = merge([str(tmp_path / "parts")], str(tmp_path / "parts"))
    assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")
    assert merged == whole


def test_folders_that_share_no_disk_merge_and_a_missing_part_is_named(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    settings = settings_of(write_questions(texts(30)), [server.url])
    built(settings, tmp_path / "whole")
    for i in range(2):
        run(settings, str(tmp_path / f"part{i}"), shard=(i, 2), progress=False)
    with pytest.raises(ConfigError, match=r"2 of 4 batches are missing \(1, 3\)"):
        merge([str(tmp_path / "part0")], str(tmp_path / "merged"))
    merge([str(tmp_path / "part0"), str(tmp_path / "part1")], str(tmp_path / "merged"))
    assert bytes_of(tmp_path / "merged") == bytes_of(tmp_path / "whole")


def test_a_second_process_on_the_folder_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path), pytest.raises(FolderBusyError, match="another process"):
        RunFolder(tmp_path).__enter__()
    with RunFolder(tmp_path, (0, 2)):
        with RunFolder(tmp_path, (1, 2)):
            pass
        for other in ((0, 2), (0, 1)):
            with pytest.raises(FolderBusyError, match="another process"):
                RunFolder(tmp_path, other).__enter__()
        with pytest.raises(FolderBusyError, match="by 2 shards"):
            RunFolder(tmp_path, (1, 3)).__enter__()
    with RunFolder(tmp_path):
        pass


def _enter_at(folder: Path, index: int, start: Any) -> bool:
    start.wait()
    try:
        with RunFolder(folder, (index, 4)):
            return True
    except FolderBusyError:
        return False


def test_shards_that_start_at_the_same_moment_all_enter(tmp_path: Path) -> None:
    """The first of them must not be seen while it still holds the folder alone."""
    context = multiprocessing.get_context("fork")
    for attempt in range(40):
        folder = tmp_path / str(attempt)
        start, results = context.Barrier(4), context.Queue()

        def enter(index: int, folder: Path = folder, start: Any = start, to: Any = results) -> None:
            to.put(_enter_at(folder, index, start))

        processes = [context.Process(target=enter, args=(i,)) for i in range(4)]
        for process in processes:
            process.start()
        assert all(results.get(timeout=30) for _ in processes)
        for process in processes:
            process.join()


def test_other_settings_on_a_begun_folder_are_refused_but_endpoints_may_move(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    file = write_questions(texts(4))
    built(settings_of(file, [server.url]), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"probe\.window was 2, is 3"):
        built(settings_of(file, [server.url], probe={"window": 3}), tmp_path / "out")
    built(settings_of(file, ["http://other:1/v1"]), tmp_path / "out")


def test_the_commands_build_inspect_and_merge(
    server: ScriptedServer,
    write_questions: Write,
    settings_of: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import yaml

    settings = settings_of(write_questions([*texts(6), {"id": "bad"}]), [server.url])
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    out = str(tmp_path / "out")
    assert main(["data", "build", "--config", str(config), "--out", out, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "questions     6" in text
    assert "missing_question" in text
    assert not Path(out).exists()
    assert not server.bodies
    assert main(["data", "build", "--config", str(config), "--out", out, "-q"]) == 0
    stats = read_json(Path(out) / "stats.json")
    assert stats["questions_dropped"] == {"missing_question": 1}
    wanted = {"traces", "kept", "drop_reasons", "trace_tokens", "probe_tokens_computed"}
    assert wanted | {"probe_cost_ratio"} <= stats.keys()
    capsys.readouterr()
    assert main(["data", "inspect", out, "--id", "q3"]) == 0
    assert "q3" in capsys.readouterr().out
    assert main(["data", "inspect", out, "--id", "nope"]) == 2
    assert "no trace 'nope'" in capsys.readouterr().err
    assert main(["data", "build", "--config", str(config), "--out", out, "probe.windw=1"]) == 2
    assert "probe.windw: unknown key" in capsys.readouterr().err


def test_finishing_twice_gives_the_same_description(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    settings = settings_of(write_questions(texts(5)), [server.url])
    stats = built(settings, tmp_path / "out")
    with RunFolder(tmp_path / "out") as folder:
        assert finish(folder, settings) == stats


def test_bisect_and_thinning_go_through_a_whole_build(
    server: ScriptedServer, write_questions: Write, settings_of: Make, tmp_path: Path
) -> None:
    file = write_questions(texts(12))
    k_stars: dict[str, list[int | None]] = {}
    for name, probe in {
        "stable": {"strategy": "stable"},
        "bisect": {"strategy": "bisect"},
        "thin": {"strategy": "stable", "every": 2, "spread": 0},
    }.items():
        built(settings_of(file, [server.url], probe=probe), tmp_path / name)
        k_stars[name] = [t.k_star for t in read_traces(tmp_path / name)]
    assert k_stars["bisect"] == k_stars["stable"]
    for trace in read_traces(tmp_path / "thin"):
        last = len(trace.boundaries) - 1
        assert all(k % 2 == 0 or k == last for k, p in enumerate(trace.probed) if p)


def test_a_row_has_exactly_the_schemas_columns() -> None:
    assert list(Trace.__dataclass_fields__) == SCHEMA.names
