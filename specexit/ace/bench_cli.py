"""`specexit bench committer`: the committer's cost as a table and as JSON."""

from __future__ import annotations

import argparse
from typing import Any

from .bench import bench_committer, load_tokenizer


def main(argv: list[str]) -> int:
    """Run the measurement. Exit code 0 when done."""
    args = _parser().parse_args(argv)
    figures = bench_committer(
        traces=args.traces,
        tokenizer=None if args.tokenizer is None else load_tokenizer(args.tokenizer),
        repetitions=args.repetitions,
        max_tokens=args.max_tokens,
        long_chars=args.long_chars,
        seed=args.seed,
    )
    if args.json:
        from specexit.files import write_json

        write_json(args.json, figures)
    _print(figures)
    return 0


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="specexit bench committer",
        description="CPU time of the committer per token over that of incremental detokenisation, "
        "on the same tokens: for the mix of tasks at hand (thinking included), and per contract "
        "with all text read as answer, where `linearity_10x` is the time of a text ten times as "
        "long.",
    )
    p.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    p.add_argument(
        "--traces",
        metavar="FOLDER",
        help="real outputs, *.jsonl or *.jsonl.gz (default: SPECEXIT_TRACES, else made-up text)",
    )
    p.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="a tokenizer.json, or its folder (default: a byte-level BPE trained on the texts)",
    )
    p.add_argument("--repetitions", type=int, default=5, metavar="N", help="of the mix of tasks")
    p.add_argument("--max-tokens", type=int, default=60_000, metavar="N", help="of the mix")
    p.add_argument("--long-chars", type=int, default=100_000, metavar="N", help="per contract")
    p.add_argument("--seed", type=int, default=0, help="which outputs, in which order")
    return p


def _print(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("contract", title=f"Committer, {figures['texts']}")
    for column in ("cost / detokenise", "10x text"):
        table.add_column(column, justify="right")
    for name, row in figures["by_contract"].items():
        cost, growth = row["cost_ratio_to_detokenise"], row["linearity_10x"]
        table.add_row(name, f"{cost:.3f}", f"{growth:.2f}")
    table.add_row(
        "mix of tasks", f"{figures['cost_ratio_to_detokenise']:.3f}", "", end_section=True
    )
    console = Console()
    console.print(table)
    console.print(
        f"{figures['committer_us']} us against {figures['detokenise_us']} us a token, "
        f"{figures['tokens']} tokens of {figures['records']} outputs, "
        f"median of {figures['repetitions']}"
    )
