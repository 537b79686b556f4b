"""The exit in Model Runner V2 (CPU, Triton's interpreter, fp32), against V1 and stock V2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams

from tests.conftest import ROOT
from tests.engine import oracle
from tests.engine.boundaries import boundaries
from tests.engine.chaos import END, START
from tests.engine.mimo import make_mimo

LENGTH = 24
LONG = 70  # with a prompt it needs three blocks of 32: four requests do not fit into six
NEVER = {"thresholds": {"confidence": 1.0}}
LOOSE = {"signals": ["remain"], "thresholds": {"remain": 1e9}}
# a random head's confidence lies around a half: some boundaries pass, some do not
DECIDED = {"signals": ["confidence"], "thresholds": {"confidence": 0.5}}
SCHEDULER = {"scheduler_cls": "inference.vllm.SpecExitScheduler"}
LOGPROB_TOLERANCE = 2e-4  # other kernels, batched otherwise

Outcome = dict[str, Any]


def draft(folder: Path, K: int = 3) -> dict[str, Any]:
    return {"method": "eagle3", "model": str(folder), "num_speculative_tokens": K}


def requests(prompts: list[list[int]], policies: list[Any], **more: Any) -> list[dict[str, Any]]:
    return [
        {"prompt": p, "max_tokens": LENGTH, "extra_args": {"specexit": policy}, **more}
        for p, policy in zip(prompts, policies, strict=True)
    ]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(9, 60, (n,), generator=generator).tolist() for n in (3, 5, 8, 11)]
    rows[3] = [*rows[3][:5], START, *rows[3][5:]]  # a part of the thinking is in the prompt
    return [*[[*row, START] for row in rows[:3]], rows[3]]


@pytest.fixture(scope="module")
def mimo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mimo(tmp_path_factory.mktemp("mimo-v2") / "target", kind="memory")


def run_v1(llm: Any, wanted: list[dict[str, Any]]) -> list[Outcome]:
    """The same requests on Model Runner V1, in this process."""
    outputs = llm.generate(
        [{"prompt_token_ids": r["prompt"]} for r in wanted],
        [
            SamplingParams(
                temperature=0, ignore_eos=True, **{k: v for k, v in r.items() if k != "prompt"}
            )
            for r in wanted
        ],
    )
    return [
        {
            "tokens": list(o.outputs[0].token_ids),
            "record": (o.kv_transfer_params or {}).get("specexit"),
        }
        for o in outputs
    ]


@pytest.fixture(scope="module")
def jobs(
    engine: Callable[..., Any], chaos: Path, mimo: Path, prompts: list[list[int]]
) -> tuple[dict[str, Any], dict[str, list[Outcome]]]:
    """What V2 is to run, and what V1 makes of the same."""
    exits = requests(prompts, [{**LOOSE, "min_think_tokens": n} for n in (0, 4, 9, 12)], logprobs=1)
    decided = requests(prompts, [DECIDED] * 4)
    mixed = requests(prompts, ["off", LOOSE, "off", NEVER])
    slow = {**LOOSE, "min_think_tokens": 40}
    long = [{**r, "max_tokens": LONG} for r in requests(prompts, [slow, "off", slow, DECIDED])]
    stock = engine(str(chaos / "target"))
    known = run_v1(stock, [{"prompt": p, "max_tokens": LONG + 8} for p in prompts])
    eagle = {"model": str(chaos / "target"), "speculative_config": draft(chaos / "memory")}
    both = {**eagle, **SCHEDULER}
    mtp = {
        "model": str(mimo),
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
        **SCHEDULER,
    }
    everyone = requests(prompts, [None] * 4, logprobs=1)
    for r in everyone:
        del r["extra_args"]
    job = {
        "known": [[p, o["tokens"]] for p, o in zip(prompts, known, strict=True)],
        "engines": {
            "stock": {
                "worker": "stock",
                "asynchronous": False,
                "arguments": eagle,
                "runs": {"all": everyone},
            },
            "sync": {
                "worker": "exit",
                "asynchronous": False,
                "arguments": both,
                "runs": {
                    "never": requests(prompts, [NEVER] * 4, logprobs=1),
                    "exits": exits,
                    "decided": decided,
                    "mixed": mixed,
                },
            },
            "async": {
                "worker": "exit",
                "asynchronous": True,
                "arguments": {
                    **both,
                    "num_gpu_blocks_override": 7,
                    "enable_prefix_caching": False,
                    "max_num_batched_tokens": 32,
                },
                "runs": {"exits": exits, "long": long},
            },
            "mtp": {
                "worker": "exit",
                "asynchronous": False,
                "arguments": mtp,
                "runs": {"decided": decided},
            },
        },
    }
    for prompt, output in job["known"]:
        oracle.KNOWN.setdefault(tuple(prompt), []).append(output)
    v1 = {"worker_cls": "tests.engine.oracle.OracleWorker", **SCHEDULER}
    main = engine(**{**both, **v1})
    answers = {n: run_v1(main, r) for n, r in (("exits", exits), ("decided", decided))}
    answers |= {"mixed": run_v1(main, mixed), "long": run_v1(main, long)}
    answers["mtp"] = run_v1(engine(**{**mtp, **v1}), decided)
    answers["known"] = known
    return job, answers


@pytest.fixture(scope="module")
def v2(
    jobs: tuple[dict[str, Any], dict[str, list[Outcome]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """Results of the process that runs V2."""
    folder = tmp_path_factory.mktemp("v2")
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(json.dumps(jobs[0]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.v2_process", str(job), str(result)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    loaded: dict[str, Any] = json.loads(result.read_text())
    return loaded


def tokens(outcomes: list[Outcome]) -> list[list[int]]:
    return [o["tokens"] for o in outcomes]


def same_records(got: list[Outcome], wanted: list[Outcome]) -> int:
    """Assert equal records up to rounding; returns how many requests exited."""
    exits = 0
    for a, b in zip(got, wanted, strict=True):
        assert (a["record"] is None) == (b["record"] is None)
        if a["record"] is None:
            continue
        mine, other = dict(a["record"]), dict(b["record"])
        for name in ("signals", "saved_estimate"):
            assert (name in mine) == (name in other)
            if name in mine:
                assert mine.pop(name) == pytest.approx(other.pop(name), rel=1e-3, abs=1e-4)
        assert mine == other
        exits += bool(mine["injected"])
    return exits


def test_never_exit_equals_stock_v2_with_logprobs(v2: dict[str, Any]) -> None:
    wanted, got = v2["stock"]["runs"]["all"], v2["sync"]["runs"]["never"]
    assert tokens(got) == tokens(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert [[e[0] for e in at] for at in a["logprobs"]] == [
            [e[0] for e in at] for at in b["logprobs"]
        ]
        ours = [e[1] for at in a["logprobs"] for e in at]
        assert ours == pytest.approx([e[1] for at in b["logprobs"] for e in at], abs=1e-6)


@pytest.mark.parametrize("name", ["sync", "async"])
def test_exit_follows_the_first_boundary_that_the_policy_allows(
    v2: dict[str, Any],
    prompts: list[list[int]],
    jobs: tuple[Any, dict[str, list[Outcome]]],
    name: str,
) -> None:
    exits = 0
    rows = zip(
        prompts, tokens(jobs[1]["known"]), v2[name]["runs"]["exits"], (0, 4, 9, 12), strict=True
    )
    for prompt, base, outcome, after in rows:
        held = len(prompt) - prompt.index(START) - 1
        allowed = [i for i in boundaries(prompt, base[: LENGTH - 1]) if held + i + 1 >= after]
        if not allowed or END in base[: allowed[0] + 2]:
            assert outcome["tokens"] == base[:LENGTH]
            continue
        at = allowed[0]
        assert outcome["tokens"][: at + 2] == [*base[: at + 1], END]
        assert outcome["record"]["injected"] == [at + 1]
        exits += 1
    assert exits >= 3


@pytest.mark.parametrize("name", ["sync", "async"])
def test_tail_equals_a_fresh_run(
    v2: dict[str, Any],
    engine: Callable[..., Any],
    chaos: Path,
    prompts: list[list[int]],
    name: str,
) -> None:
    again, tails = [], []
    for outcomes in v2[name]["runs"].values():
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            for at in (outcome["record"] or {}).get("injected", ()):
                tail = outcome["tokens"][at + 1 :]
                if tail:
                    ids = prompt + outcome["tokens"][: at + 1]
                    again.append({"prompt": ids, "max_tokens": len(tail)})
                    tails.append(tail)
    assert len(tails) >= 3
    assert tokens(run_v1(engine(str(chaos / "target")), again)) == tails


def test_logprob_of_a_forced_token_is_the_targets(
    v2: dict[str, Any], engine: Callable[..., Any], chaos: Path, prompts: list[list[int]]
) -> None:
    """Id, logprob and rank of the injected think end are those of a teacher-forced prompt."""
    checked = 0
    for name in ("sync", "async"):
        for prompt, outcome in zip(prompts, v2[name]["runs"]["exits"], strict=True):
            for at in outcome["record"]["injected"]:
                ids = prompt + outcome["tokens"][: at + 1]
                params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
                output = engine(str(chaos / "target")).generate(
                    [{"prompt_token_ids": ids}], params
                )[0]
                wanted = output.prompt_logprobs[-1][END]
                found = {i: (value, rank) for i, value, rank in outcome["logprobs"][at]}
                assert found[END][0] == pytest.approx(wanted.logprob, abs=LOGPROB_TOLERANCE)
                assert found[END][1] == wanted.rank
                checked += 1
    assert checked >= 6


@pytest.mark.parametrize(
    ("name", "run", "least"),
    [
        ("sync", "exits", 3),
        ("sync", "decided", 1),
        ("sync", "mixed", 1),
        ("async", "exits", 3),
        ("async", "long", 1),
    ],
)
def test_exits_equal_those_of_v1(
    v2: dict[str, Any],
    jobs: tuple[Any, dict[str, list[Outcome]]],
    name: str,
    run: str,
    least: int,
) -> None:
    got, wanted = v2[name]["runs"][run], jobs[1][run]
    assert tokens(got) == tokens(wanted)
    assert same_records(got, wanted) >= least


def test_off_stays_off_in_the_slot_of_a_request_that_was_thinking(
    v2: dict[str, Any], jobs: tuple[Any, dict[str, list[Outcome]]]
) -> None:
    """The run before `mixed` leaves thinking requests in every slot."""
    for i in (0, 2):
        assert v2["sync"]["runs"]["mixed"][i]["tokens"] == jobs[1]["known"][i]["tokens"][:LENGTH]


def test_preempted_requests_resume_with_their_state(v2: dict[str, Any]) -> None:
    """`test_exits_equal_those_of_v1[async-long]` compares their outputs."""
    assert v2["async"]["preemptions"] >= 1
    assert v2["async"]["stats"]["snapshots"] == 0


@pytest.mark.parametrize("name", ["sync", "async", "mtp"])
def test_nothing_is_left_behind(v2: dict[str, Any], name: str) -> None:
    stats = v2[name]["stats"]
    assert stats["steps"] > 0
    assert stats["requests_known"] <= 4  # the last ones leave with the next step


def test_mtp_signals_and_exits_equal_those_of_v1(
    v2: dict[str, Any], jobs: tuple[Any, dict[str, list[Outcome]]]
) -> None:
    got, wanted = v2["mtp"]["runs"]["decided"], jobs[1]["mtp"]
    assert tokens(got) == tokens(wanted)
    assert same_records(got, wanted) >= 1
