"""`specexit calibrate`: thresholds with a guarantee, written into the head."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console

from inference.study.prepare import ensure
from specexit.calibration import (
    Certificate,
    Risk,
    calibrate,
    candidate_chains,
    resample,
)
from specexit.checkpoint import load_metadata, save_metadata
from specexit.cli import parser, set_verbosity
from specexit.config import Settings, load
from specexit.files import write_json
from specexit.policy import ExitPolicy
from specexit.provenance import write_provenance
from specexit.replay import Replay, ReplayTable, Summary

log = logging.getLogger(__name__)


class CalibrateSettings(Settings):
    """What to promise, and from which data."""

    table: str
    """Replay table of the head (`specexit replay record`)."""
    head: str | None = None
    """Head that gets the policy and its certificate; null writes neither."""
    epsilon: float = Field(0.01, gt=0, lt=1)
    """Limit of the risk, as a rate over all questions."""
    delta: float = Field(0.1, gt=0, lt=1)
    """Probability, over calibration splits, that the limit is broken."""
    risk: Risk = "lost"
    """`lost`: right with full thinking, wrong after the exit; `early`: exit before sufficiency."""
    min_oracle_share: float = Field(0.1, ge=0, le=1)
    """Do not exit at all if less than this share of the oracle's saving can be had."""
    calibration_split: str = "calibration"
    """Split that the thresholds are chosen on."""
    test_split: str = "test"
    """Split that is reported, never looked at to choose."""
    base: ExitPolicy = ExitPolicy()
    """Settings that the candidates keep (min_think_tokens, exit_suffix, ...)."""
    seed: int = 0
    """Seed of intervals and resampling."""


def main(argv: list[str]) -> int:
    """Run the command."""
    p = parser(
        "calibrate",
        "Choose thresholds so that P(risk > epsilon) <= delta, and write them into the head.",
        config=True,
        json=True,
    )
    p.add_argument("--out", metavar="DIR", help="also write certificate.json here")
    p.add_argument(
        "--resample", metavar="N", type=int, help="check the promise on N resampled splits"
    )
    args = p.parse_args(argv)
    set_verbosity(args)
    settings = load(CalibrateSettings, args.config, args.overrides)
    ensure([settings.table])
    table = ReplayTable.load(settings.table)
    result = run(table, settings)
    if args.resample:
        result |= check(table, settings, args.resample)
    if settings.head is not None:
        write_into_head(settings.head, result)
    if args.out:
        write_json(Path(args.out) / "certificate.json", result)
        write_provenance(
            Path(args.out) / "calibration",
            command="specexit calibrate " + " ".join(argv),
            seed=settings.seed,
            config=settings.model_dump(mode="json"),
        )
    if args.json:
        write_json(args.json, result)
    show(result)
    return 0


def run(table: ReplayTable, settings: CalibrateSettings) -> dict[str, Any]:
    """Policy, certificate, and how it fares on the test split; JSON-able."""
    kind = table.source.get("kind", "memory")
    policy, certificate = calibrate(
        table.of_split(settings.calibration_split),
        settings.epsilon,
        settings.delta,
        candidate_chains(kind, settings.base),
        risk=settings.risk,
        min_oracle_share=settings.min_oracle_share,
        skipped=_failed(table, settings.calibration_split),
    )
    result: dict[str, Any] = {
        "policy": policy.model_dump(mode="json"),
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "n": certificate.n,
        "certificate": certificate.as_json(),
        "kind": kind,
        "table": settings.table,
    }
    if settings.test_split in table.splits:
        result["test"] = _on_test(table.of_split(settings.test_split), policy, settings).as_json()
    return result


def _failed(table: ReplayTable, split: str) -> int:
    """Questions of a split that failed before they reached the table."""
    harmless = ("no thinking", "empty_thinking")  # nothing to exit from
    found = table.source.get("skipped", {}).get(split, {})
    return sum(n for reason, n in found.items() if reason not in harmless)


def check(table: ReplayTable, settings: CalibrateSettings, repeats: int) -> dict[str, Any]:
    """Rate of broken promises over splits resampled from all held-out questions together."""
    found = resample(
        table,
        settings.epsilon,
        settings.delta,
        candidate_chains(table.source.get("kind", "memory"), settings.base),
        n=len(table.of_split(settings.calibration_split)),
        repeats=repeats,
        seed=settings.seed,
        risk=settings.risk,
        min_oracle_share=settings.min_oracle_share,
    )
    return {"violation_rate": found.violation_rate, "resample": found.as_json()}


def write_into_head(head: str, result: dict[str, Any]) -> None:
    """Make the policy the head's default, its certificate beside it."""
    metadata = load_metadata(head)
    save_metadata(
        head,
        metadata.model_copy(
            update={
                "policy": ExitPolicy.model_validate(result["policy"]),
                "calibration": result["certificate"] | {"test": result.get("test")},
            }
        ),
    )


def show(result: dict[str, Any]) -> None:
    """Print the outcome."""
    c = Certificate(**result["certificate"])
    what = "lost answers" if c.risk == "lost" else "exits before sufficiency"
    lines = [f"P({what} > {c.epsilon:.2%}) <= {c.delta:g}, from n = {c.n} questions ({c.method})"]
    if c.exits:
        policy = ExitPolicy.model_validate(result["policy"])
        limits = policy.thresholds.model_dump()
        rule = ", ".join(
            f"{s} {'<' if s == 'remain' else '>'} {limits[s]:g}" for s in policy.signals
        )
        lines.append(f"exit when {rule} ({policy.smoothing.kind} smoothing)")
        lines.append(
            f"calibration: {c.losses} losses, upper bound {c.upper_bound:.2%}, "
            f"{c.oracle_share or 0:.1%} of the oracle's saving"
        )
    else:
        lines.append(f"no exits: {c.reason}")
    if test := result.get("test"):
        low, high = test["lost_ci"]
        lines.append(
            f"test: {test['lost']:.2%} lost [{low:.2%}, {high:.2%}], "
            f"{test['oracle_share'] or 0:.1%} of the oracle's saving, n = {test['n']}"
        )
    if again := result.get("resample"):
        low, high = again["violation_ci"]
        lines.append(
            f"promise broken in {again['violation_rate']:.1%} [{low:.1%}, {high:.1%}] of "
            f"{again['repeats']} resampled splits, allowed {c.delta:.1%}"
        )
    Console().print("\n".join(lines), markup=False, highlight=False)


def _on_test(table: ReplayTable, policy: ExitPolicy, settings: CalibrateSettings) -> Summary:
    replay = Replay(table)
    return replay.summaries(replay.evaluate([policy]), intervals=True, seed=settings.seed)[0]
