"""`specexit bench replay`: how many policies a second the replay evaluates."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
from rich.console import Console

from specexit.cli import parser, set_verbosity
from specexit.files import write_json
from specexit.policy import ExitPolicy, Smoothing, Thresholds
from specexit.replay import Replay, ReplayTable


def main(argv: list[str]) -> int:
    """Run the command."""
    p = parser(
        "bench replay", "Policies a second of the replay's evaluation.", json=True, seed=True
    )
    p.add_argument("--table", metavar="DIR", help="replay table; random traces where not given")
    p.add_argument("--traces", type=int, default=300, help="traces to evaluate on")
    args = p.parse_args(argv)
    set_verbosity(args)
    table = ReplayTable.load(args.table) if args.table else random_table(args.traces, args.seed)
    result = measure(table.select(range(min(args.traces, len(table)))))
    if args.json:
        write_json(args.json, result)
    Console().print(
        f"{result['policies_per_s']:.0f} policies/s ({result['policies']} policies, "
        f"{result['traces']} traces, {result['boundaries']} boundaries; median of "
        f"{result['repeats']}, smoothing included)",
        highlight=False,
    )
    return 0


def measure(table: ReplayTable, repeats: int = 5) -> dict[str, Any]:
    """Evaluate a grid of mixed policies, from a fresh `Replay` each time."""
    policies = grid()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        replay = Replay(table)
        replay.evaluate(policies)
        seconds.append(time.perf_counter() - started)
    return {
        "policies_per_s": len(policies) / float(np.median(seconds)),
        "policies": len(policies),
        "traces": len(table),
        "boundaries": len(table.boundaries),
        "repeats": repeats,
    }


def grid() -> list[ExitPolicy]:
    """8,640 policies: signals, smoothing, patience and thresholds mixed."""
    smoothings = [
        Smoothing(kind="none"),
        *(Smoothing(alpha=a) for a in (0.1, 0.3)),
        Smoothing(kind="mean"),
        Smoothing(kind="paragraph_mean"),
        Smoothing(kind="momentum"),
    ]
    thresholds = [
        Thresholds(confidence=c, progress=p, remain=r)
        for c, p, r in itertools.product(
            np.linspace(0.1, 0.95, 6), np.linspace(0.1, 0.95, 6), np.geomspace(2, 300, 10)
        )
    ]
    return [
        ExitPolicy(signals=signals, smoothing=s, patience=patience, thresholds=t)
        for signals in (("confidence", "progress", "remain"), ("remain",))
        for s in smoothings
        for patience in (1, 2)
        for t in thresholds
    ]


def random_table(n: int, seed: int) -> ReplayTable:
    """Traces of about 400 tokens and a paragraph every 40, with random signals."""
    random = np.random.default_rng(seed)
    tokens = random.integers(200, 600, n)
    marks = [[0, *range(40, int(t), 40)] for t in tokens]
    counts = [len(m) for m in marks]
    total, boundaries = int(tokens.sum()), sum(counts)
    ints = np.zeros(n, np.int32)
    return ReplayTable(
        ids=tuple(str(i) for i in range(n)),
        splits=("test",) * n,
        token_offsets=np.concatenate([[0], np.cumsum(tokens)]).astype(np.int64),
        boundary_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        signals=(random.random((total, 3)) * [1, 1, 400]).astype(np.float32),
        boundaries=np.concatenate(marks).astype(np.int32),
        agrees=random.integers(0, 2, boundaries).astype(np.int32),
        correct=random.integers(0, 2, boundaries).astype(np.int32),
        answer_id=np.zeros(boundaries, np.int32),
        trial_tokens=np.full(boundaries, 8, np.int32),
        trial_logprob=np.zeros(boundaries, np.float32),
        prompt_tokens=ints,
        answer_tokens=ints,
        full_correct=ints + 1,
        k_star=np.array([c // 2 for c in counts], np.int32),
    )
