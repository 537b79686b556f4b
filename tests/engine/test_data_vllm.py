"""Data from the built-in reasoner in real vLLM: exactness, cost, determinism, early stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_build.build import make_engine
from data_build.config import DataSettings
from data_build.folder import RunFolder
from data_build.run import run
from data_build.verification import fresh_engine, verify
from specexit.config import parse
from specexit.dataset import read_traces

N = 24


def settings_of(**values: Any) -> DataSettings:
    return parse(
        DataSettings,
        {
            "target": "tiny",
            "contract": "boxed_integer",
            "questions": [{"source": "tiny", "part": "heldout", "n": N, "seed": 11}],
            "engine": {"dtype": "float32", "max_model_len": 1536, "max_num_seqs": 32},
            "sampling": {"max_tokens": 1280},
            "probe": {"max_answer_tokens": 24, **values.pop("probe", {})},
            "batch_size": 16,
            **values,
        },
    )


class Shared:
    """An engine that outlives the builds that use it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """One engine with prefix caching and the contract plug-in, for all builds of this file."""
    made = make_engine(settings_of())
    yield Shared(made)
    made.close()


def build(out: Path, engine: Any, **values: Any) -> dict[str, Any]:
    """`specexit data build` with the shared engine."""
    stats = run(settings_of(**values), str(out), progress=False, engine_of=lambda _: engine)
    assert stats is not None
    return stats


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> tuple[Path, dict[str, Any]]:
    """A dataset with `stable` probing and nothing else."""
    out = tmp_path_factory.mktemp("stable")
    return out, build(out, engine, probe={"spread": 0})


def test_stable_probing_costs_at_most_1_3_tokens_a_trace_token(
    stable: tuple[Path, dict[str, Any]],
) -> None:
    stats = stable[1]
    assert stats["traces"] == N
    assert stats["kept"] >= 0.8 * N
    assert stats["probe_cost_ratio"] <= 1.3
    assert stats["all_boundaries_without_reuse"]["cost_ratio"] > 2 * stats["probe_cost_ratio"]


def test_the_engines_counters_equal_what_its_responses_say(
    stable: tuple[Path, dict[str, Any]],
) -> None:
    cost = stable[1]["cost"]
    from_responses = (
        cost["probe_prompt_tokens"] - cost["probe_cached_tokens"] + cost["probe_generated_tokens"]
    )
    assert stable[1]["probe_tokens_computed"] == from_responses
    assert stable[1]["engine_counters"]["preemptions"] == 0


def test_trials_stop_at_the_token_that_commits(stable: tuple[Path, dict[str, Any]]) -> None:
    folder, stats = stable
    committed = sum(sum(t.trial_tokens) for t in read_traces(folder))
    assert stats["cost"]["probe_generated_tokens"] == committed


def test_the_same_build_gives_the_same_bytes_and_bisect_the_same_boundaries(
    stable: tuple[Path, dict[str, Any]],
    engine: Any,
    tmp_path: Path,
) -> None:
    build(tmp_path / "again", engine, probe={"spread": 0})
    for file in sorted((stable[0] / "data").iterdir()):
        assert file.read_bytes() == (tmp_path / "again" / "data" / file.name).read_bytes()
    build(tmp_path / "bisect", engine, probe={"strategy": "bisect", "spread": 0})
    expected = {t.id: t.k_star for t in read_traces(stable[0])}
    assert {t.id: t.k_star for t in read_traces(tmp_path / "bisect")} == expected


def test_sufficient_boundaries_equal_brute_force(
    stable: tuple[Path, dict[str, Any]],
) -> None:
    # After the tests that use the shared engine: closing another one ends its parallel groups.
    found = verify(stable[0], N, engine_of=fresh_engine, progress=False)
    assert found.n >= 0.8 * N
    assert found.equal == found.n
    assert found.trials_equal == found.trials


def test_rows_carry_the_reasoners_facts_and_full_logprobs(
    stable: tuple[Path, dict[str, Any]],
) -> None:
    for trace in read_traces(stable[0]):
        assert {"family", "derivation_end", "slip"} <= json.loads(trace.meta).keys()
        if trace.keep:
            tokens = len(trace.thinking_ids)
            assert len(trace.token_logprobs) == len(trace.confidence) == tokens
            assert max(trace.token_logprobs) <= 1e-5
            assert trace.answer_logprob is not None


def test_a_locked_folder_refuses_a_second_build(tmp_path: Path) -> None:
    from specexit.cli import main

    with RunFolder(tmp_path):
        config = Path(__file__).parents[2] / "configs" / "data" / "tiny.yaml"
        code = main(["data", "build", "--config", str(config), "--out", str(tmp_path), "-q"])
    assert code == 1
