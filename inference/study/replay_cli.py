"""`specexit replay record | eval`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from rich.table import Table

from specexit.cli import parser, set_verbosity
from specexit.config import Settings, load
from specexit.dataset import SPLITS, Split, Trace, data_hash, read_traces
from specexit.errors import ConfigError
from specexit.files import write_json
from specexit.policy import ExitPolicy
from specexit.provenance import write_provenance
from specexit.replay import Replay, ReplayTable, Summary

USAGE = """usage: specexit replay COMMAND [options]

commands:
  record  signals at every token of known traces, joined with their trial answers
  eval    where a policy exits on a recorded table, and what that costs

`specexit replay COMMAND --help` says more about one."""


class RecordSettings(Settings):
    """What to record."""

    target: str
    """Folder or hub name of the target; `tiny` is the built-in reasoner."""
    head: str
    """Folder of a head with signals."""
    data: str
    """Folder of `specexit data build`, with every boundary of these splits probed."""
    splits: tuple[Split, ...] = ("calibration", "test")
    """Splits to record."""
    live: bool = False
    """False: signals from one transformers pass over the recorded outputs. True: generated again
    in vLLM, exits off, signals recorded by the worker, with the verification steps."""
    dtype: str = "float32"
    """Of the target's computation; take the engine's."""
    end_entropy: bool = False
    """Also record the entropy after a think end injected at each boundary, which one baseline
    (EAT) needs; takes a second pass over each trace."""
    batch_size: int = Field(8, ge=1)
    """Traces a pass."""
    max_traces: int | None = Field(None, ge=1)
    """Record only the first so many of each split."""


def main(argv: list[str]) -> int:
    """Dispatch to a sub-command."""
    commands = {"record": record, "eval": evaluate}
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else 2
    if argv[0] not in commands:
        print(f"specexit replay: {argv[0]!r} is not a command\n\n{USAGE}", file=sys.stderr)
        return 2
    return commands[argv[0]](argv[1:])


def record(argv: list[str]) -> int:
    """`specexit replay record`."""
    p = parser(
        "replay record",
        "Record the signals of known traces and join them with their trial answers.",
        config=True,
        out=True,
        json=True,
    )
    for name, text in (
        ("target", "folder of the target, or `tiny`"),
        ("head", "folder of the head"),
        ("data", "folder of the data set"),
    ):
        p.add_argument(f"--{name}", metavar="DIR", help=text)
    args = p.parse_args(argv)
    set_verbosity(args)
    given = {name: getattr(args, name) for name in ("target", "head", "data")}
    overrides = [f"{name}={value}" for name, value in given.items() if value is not None]
    settings = load(RecordSettings, args.config, [*overrides, *args.overrides])
    table = record_table(settings, quiet=args.quiet)
    table.save(args.out)
    write_provenance(
        args.out,
        command="specexit replay record " + " ".join(argv),
        seed=None,
        config=settings.model_dump(mode="json"),
        data_hash=table.source["data_hash"],
    )
    counts = {split: table.splits.count(split) for split in SPLITS if split in table.splits}
    if args.json:
        write_json(args.json, {"traces": len(table), "splits": counts, "out": str(args.out)})
    print(f"{len(table)} traces ({', '.join(f'{n} {s}' for s, n in counts.items())}): {args.out}")
    return 0


def record_table(settings: RecordSettings, *, quiet: bool = False) -> ReplayTable:
    """The replay table of a head on a data set."""
    target = target_folder(settings.target)
    traces, skipped = traces_of(settings)
    source: dict[str, Any] = {
        "target": settings.target,
        "head": settings.head,
        "data": settings.data,
        "data_hash": data_hash(settings.data),
        "dtype": settings.dtype,
        "method": "offline",
        "skipped": {split: dict(why) for split, why in skipped.items()},
    }
    if settings.live:
        from inference.study.record_live import record_live

        return record_live(
            traces, target, settings.head, dtype=settings.dtype, source=source, quiet=quiet
        )
    from inference.study.record import SignalRecorder

    recorder = SignalRecorder(
        target, settings.head, dtype=settings.dtype, end_entropy=settings.end_entropy
    )
    recorded = recorder.record(traces, batch_size=settings.batch_size, quiet=quiet)
    metadata = recorder.metadata
    return ReplayTable.from_traces(
        traces,
        [r.signals for r in recorded],
        entropy=[r.entropy for r in recorded],
        end_entropy=(
            [r.end_entropy for r in recorded if r.end_entropy is not None]
            if settings.end_entropy
            else None
        ),
        think_end_tokens=len(metadata.think_end_ids),
        step_split=metadata.policy.step_split,
        source=source | {"kind": metadata.kind},
    )


def traces_of(settings: RecordSettings) -> tuple[list[Trace], dict[Split, Counter[str]]]:
    """Traces of the asked splits that have thought; by split, how many were skipped and why."""
    kept: list[Trace] = []
    skipped = {split: Counter[str]() for split in settings.splits}
    for split in settings.splits:
        found = 0
        for trace in read_traces(settings.data, split):
            if settings.max_traces is not None and found >= settings.max_traces:
                break
            reason = _unusable(trace)
            if reason:
                skipped[split][reason] += 1
                continue
            kept.append(trace)
            found += 1
    if not kept:
        raise ConfigError(
            f"replay record: {settings.data} has no usable traces in {', '.join(settings.splits)} "
            f"(skipped: { {split: dict(why) for split, why in skipped.items()} })"
        )
    return kept, skipped


def target_folder(target: str) -> str:
    """`tiny` -> the built-in reasoner's folder; anything else as it is."""
    if target != "tiny":
        return target
    from specexit.tiny import model_path

    return str(model_path())


def evaluate(argv: list[str]) -> int:
    """`specexit replay eval`."""
    p = parser("replay eval", "Evaluate policies on a recorded table.", json=True, seed=True)
    p.add_argument("--table", metavar="DIR", required=True, help="folder of `replay record`")
    p.add_argument(
        "--policy",
        metavar="FILE",
        action="append",
        default=[],
        help="policy YAML, or a head's folder",
    )
    p.add_argument("--split", default="test", help="split to evaluate, `all` for every trace")
    args = p.parse_args(argv)
    set_verbosity(args)
    if not args.policy:
        p.error("give at least one --policy")
    policies = [policy_of(place) for place in args.policy]
    table = ReplayTable.load(args.table)
    if args.split != "all":
        table = table.of_split(args.split)
    replay = Replay(table)
    summaries = replay.summaries(replay.evaluate(policies), intervals=True, seed=args.seed)
    rows = [
        {"policy": policy.model_dump(mode="json"), **summary.as_json()}
        for policy, summary in zip(policies, summaries, strict=True)
    ]
    if args.json:
        write_json(args.json, {"table": args.table, "split": args.split, "rows": rows})
    print_summaries([Path(f).stem for f in args.policy], summaries)
    return 0


def policy_of(place: str) -> ExitPolicy:
    """A policy from a YAML file, or the one that a head carries."""
    if Path(place).is_dir():
        from specexit.checkpoint import load_metadata

        return load_metadata(place).policy
    return load(ExitPolicy, place)


def print_summaries(names: list[str], summaries: list[Summary]) -> None:
    """A table of policies, one a row."""
    out = Table(title=f"n = {summaries[0].n}, 95 % intervals over questions")
    for column in ("policy", "accuracy", "lost", "thinking tokens", "oracle's saving"):
        out.add_column(column, justify="left" if column == "policy" else "right")
    for name, s in zip(names, summaries, strict=True):
        out.add_row(
            name,
            _percent(s.accuracy, s.accuracy_ci),
            _percent(s.lost, s.lost_ci),
            f"{s.think_tokens:.1f} of {s.full_think_tokens:.1f}",
            _percent(s.oracle_share, s.oracle_share_ci),
        )
    Console().print(out)


def _percent(value: float, interval: tuple[float, float] | None) -> str:
    text = f"{100 * value:.1f} %"
    return f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else text


def _unusable(trace: Trace) -> str | None:
    if trace.think_end <= trace.think_start:
        return "no thinking"
    never_probed = ("engine_error", "empty_thinking", "too_long", "not_probed")
    return trace.drop_reason if trace.drop_reason in never_probed else None
