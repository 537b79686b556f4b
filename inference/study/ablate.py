"""`specexit ablate`: what each choice is worth, on replay tables; the best confirmed in vLLM."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from inference.study.choose import Chosen, choose, pareto, share_difference
from inference.study.families import Family, Grid, families
from inference.study.prepare import ensure
from specexit.cli import parser, set_verbosity
from specexit.config import Settings, load
from specexit.errors import ConfigError
from specexit.files import write_json
from specexit.policy import ExitPolicy
from specexit.provenance import write_provenance
from specexit.replay import Replay, ReplayTable

log = logging.getLogger(__name__)


class LiveSettings(Settings):
    """Confirmation of the best policies in vLLM."""

    target: str = "tiny"
    """Folder of the target, `tiny` for the built-in reasoner."""
    data: str
    """Data set that the tables were recorded from."""
    policies: int = Field(3, ge=0)
    """How many of the best policies of each table, all different, are run live; 0 for none."""
    questions: int = Field(200, ge=1)
    """Held-out questions that each answers."""
    dtype: str = "float32"
    """Of the engine; take the table's."""
    num_speculative_tokens: int = Field(3, ge=1)
    """Draft tokens a step."""
    max_tokens: int = Field(1400, ge=1)
    """Longest output."""


class AblateSettings(Settings):
    """What to compare."""

    tables: dict[str, str]
    """Name -> replay table. One for each head (kind, label, weighting, balancing, step split)."""
    heads: dict[str, str] = Field(default_factory=dict)
    """Name -> head folder, for the live confirmation."""
    choose_split: str = "calibration"
    """Split on which thresholds are chosen."""
    test_split: str = "test"
    """Split that is reported."""
    limits: tuple[float, ...] = (0.005, 0.01)
    """Limits on the rate of lost answers; the last is the one that the printed table shows."""
    alphas: tuple[float, ...] = (0.05, 0.1, 0.3, 0.6)
    """EWMA and momentum weights."""
    patience: tuple[int, ...] = (1, 2, 3)
    """Consecutive boundaries."""
    min_think_tokens: tuple[int, ...] = (0, 32, 96)
    """Never exit before so many tokens."""
    grid_alone: int = Field(200, ge=2)
    """Threshold values of a signal used alone."""
    grid_together: int = Field(14, ge=2)
    """Threshold values of each signal where several are combined."""
    live: LiveSettings | None = None
    """Null confirms nothing live."""
    seed: int = 0
    """Seed of the intervals."""


def main(argv: list[str]) -> int:
    """Run the command."""
    p = parser(
        "ablate",
        "Compare signals, thresholds, smoothing, patience and heads on recorded tables.",
        config=True,
        json=True,
    )
    p.add_argument("--out", metavar="DIR", help="write ablation.json and provenance here")
    args = p.parse_args(argv)
    set_verbosity(args)
    settings = load(AblateSettings, args.config, args.overrides)
    ensure(settings.tables.values())
    result = run(settings, quiet=args.quiet)
    if args.out:
        write_json(Path(args.out) / "ablation.json", result)
        write_provenance(
            args.out,
            command="specexit ablate " + " ".join(argv),
            seed=settings.seed,
            config=settings.model_dump(mode="json"),
        )
    if args.json:
        write_json(args.json, result)
    show(result, settings)
    return 0


def run(settings: AblateSettings, *, quiet: bool = False) -> dict[str, Any]:
    """The whole ablation, JSON-able; keys are documented in docs/ablation.md."""
    rows: list[dict[str, Any]] = []
    fronts: dict[str, list[dict[str, Any]]] = {}
    best: dict[str, list[dict[str, Any]]] = {}
    for name, folder in settings.tables.items():
        table = ReplayTable.load(folder)
        choosing = Replay(table.of_split(settings.choose_split))
        testing = Replay(table.of_split(settings.test_split))
        compared = families(
            choosing,
            alphas=settings.alphas,
            patience=settings.patience,
            min_think_tokens=settings.min_think_tokens,
            grid=Grid(settings.grid_alone, settings.grid_together),
        )
        table_rows = _rows(name, compared, choosing, testing, settings, quiet)
        rows += table_rows
        fronts[name] = _front(compared, choosing, testing, settings.seed)
        best[name] = [_best(table_rows, limit) for limit in settings.limits]
    result = {
        "rows": rows,
        "fronts": fronts,
        "best": best,
        "limits": list(settings.limits),
        "policies": sum(row["policies"] for row in rows) // max(1, len(settings.limits)),
        "live": [],
    }
    if settings.live is not None and settings.live.policies:
        result["live"] = _confirm(settings, settings.live, rows, quiet)
    return result


def show(result: dict[str, Any], settings: AblateSettings) -> None:
    """Print what the last limit gives on the test split."""
    limit = settings.limits[-1]
    out = Table(title=f"<= {limit:.1%} lost on {settings.choose_split}; figures of the test split")
    for column in ("table", "axis", "value", "lost", "oracle's saving", "against the first"):
        out.add_column(column, justify="left" if column in ("table", "axis", "value") else "right")
    for row in result["rows"]:
        if row["limit"] == limit:
            t = row["test"]
            out.add_row(
                row["table"],
                row["axis"],
                row["name"],
                f"{t['lost']:.1%} [{t['lost_ci'][0]:.1%}, {t['lost_ci'][1]:.1%}]",
                _share(t["oracle_share"], t["oracle_share_ci"]),
                _share(row["share_difference"], row["share_difference_ci"]),
            )
    console = Console()
    console.print(out)
    for live in result["live"]:
        console.print(
            f"live, {live['table']}: {live['same_exit']}/{live['n']} exits and "
            f"{live['same_answer']}/{live['n']} answers as replayed",
            highlight=False,
        )


def _rows(
    name: str,
    compared: list[Family],
    choosing: Replay,
    testing: Replay,
    settings: AblateSettings,
    quiet: bool,
) -> list[dict[str, Any]]:
    rows = []
    first: dict[tuple[str, float], Chosen] = {}
    for family in tqdm(compared, desc=f"ablate {name}", unit="family", disable=quiet):
        for limit in settings.limits:
            chosen = choose(family.policies, choosing, testing, limit, seed=settings.seed)
            reference = first.setdefault((family.axis, limit), chosen)
            difference = chosen.test.oracle_share - reference.test.oracle_share
            rows.append(
                {
                    "table": name,
                    "kind": testing.table.source.get("kind"),
                    "axis": family.axis,
                    "name": family.name,
                    "limit": limit,
                    "policies": len(family.policies),
                    "policy": chosen.policy and chosen.policy.model_dump(mode="json"),
                    "chosen_on": chosen.chosen_on.as_json(),
                    "test": chosen.test.as_json(),
                    "share_difference": difference,
                    "share_difference_ci": list(
                        share_difference(chosen, reference, testing, settings.seed)
                    ),
                }
            )
    return rows


def _front(
    compared: list[Family], choosing: Replay, testing: Replay, seed: int
) -> list[dict[str, Any]]:
    """Policies on the choosing split's front, with the figures of both splits."""
    policies = [p for family in compared if family.axis == "signals" for p in family.policies]
    outcomes = choosing.evaluate(policies)
    picked = [policies[i] for i in pareto(outcomes)]
    on_choosing = choosing.summaries(choosing.evaluate(picked))
    on_test = testing.summaries(testing.evaluate(picked), intervals=True, seed=seed)
    return [
        {"policy": p.model_dump(mode="json"), "chosen_on": a.as_json(), "test": b.as_json()}
        for p, a, b in zip(picked, on_choosing, on_test, strict=True)
    ]


def _best(rows: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    """The row with the largest saving on the choosing split under a limit; the first of equals."""
    kept = [row for row in rows if row["limit"] == limit]
    best = min(kept, key=lambda row: row["chosen_on"]["think_tokens"])
    return {k: best[k] for k in ("axis", "name", "limit", "policy", "chosen_on", "test")}


def _confirm(
    settings: AblateSettings, live: LiveSettings, rows: list[dict[str, Any]], quiet: bool
) -> list[dict[str, Any]]:
    from inference.study.confirm import confirm_live

    missing = sorted(set(settings.tables) - set(settings.heads))
    if missing:
        raise ConfigError(f"heads: no folder for {', '.join(missing)}; live confirmation needs it")
    found = []
    for name, folder in settings.tables.items():
        runnable = [
            row
            for row in rows
            if row["table"] == name
            and row["limit"] == settings.limits[-1]
            and row["policy"] is not None
            and row["policy"]["smoothing"]["kind"] in ("none", "ewma")
            and row["policy"]["smoothing"]["unit"] == "token"
        ]
        runnable.sort(key=lambda row: row["chosen_on"]["think_tokens"])
        policies: list[ExitPolicy] = []
        for row in runnable:  # several axes share their best policy
            policy = ExitPolicy.model_validate(row["policy"])
            if policy not in policies and len(policies) < live.policies:
                policies.append(policy)
        table = ReplayTable.load(folder).of_split(settings.test_split)
        result = confirm_live(
            table,
            policies,
            target=live.target,
            head=settings.heads[name],
            data=live.data,
            split=settings.test_split,
            questions=live.questions,
            dtype=live.dtype,
            num_speculative_tokens=live.num_speculative_tokens,
            max_tokens=live.max_tokens,
            quiet=quiet,
        )
        found += [{"table": name, **r.as_json()} for r in result]
    return found


def _share(value: float | None, interval: list[float] | None) -> str:
    text = "-" if value is None else f"{value:.1%}"
    return f"{text} [{interval[0]:.1%}, {interval[1]:.1%}]" if interval else text
