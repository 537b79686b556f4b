"""`specexit ace replay FILE...`: what a contract would have saved on existing outputs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from specexit.contracts import Contract, contract

from .guess import guess, usual_grader
from .records import Record, read_records
from .replay import Replayed, replay_record, summarise
from .tokens import token_counter


def main(argv: list[str]) -> int:
    """Run `specexit ace ...`. Exit codes: 0 done, 1 a sound contract was unsound, 2 wrong usage."""
    args = _parser().parse_args(argv)
    from specexit.cli import set_verbosity

    set_verbosity(args)
    records = [record for file in args.files for record in read_records(file)]
    if args.limit:
        records = records[: args.limit]
    chosen = None if args.contract is None else contract(args.contract)
    replayed, skipped = run(records, chosen, args)
    rows = summarise(replayed)
    _print(rows, skipped)
    disagreements = [one for one in replayed if one.faithful is False]
    if args.show_disagreements:
        _print_disagreements(disagreements)
    if args.json:
        from specexit.files import write_json

        meta = {
            "files": args.files,
            "contract": None if chosen is None else chosen.spec(),
            "tokens": args.tokenizer or "pieces of a pre-tokeniser pattern",
            "seed": args.seed,
            "skipped": skipped,
        }
        listed = [_disagreement(one) for one in disagreements]
        write_json(args.json, {"meta": meta, "rows": rows, "disagreements": listed})
    broken = [one for one in replayed if not one.sound and not _heuristic(one, chosen)]
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="specexit ace", description="Answer contracts off line.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    p = commands.add_parser(
        "replay",
        help="replay contracts on existing outputs",
        description="Where would a contract have committed, to what answer, at what gain? A row "
        "per contract and model: n outputs, committed answers, unsound commits (a continuation "
        "changes the evaluator's answer), faithful ones (equal to the usual grader's answer on the "
        "full output, out of `judged`), and the answer tokens saved.",
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="JSON lines, .gz or not")
    p.add_argument("--json", metavar="FILE", help="also write rows and disagreements as JSON")
    p.add_argument(
        "--contract", metavar="NAME|JSON|FILE", help="for all records (default: by their task)"
    )
    p.add_argument("--show-disagreements", action="store_true", help="list every unfaithful commit")
    p.add_argument("--tokenizer", metavar="FOLDER", help="count its tokens, not pattern pieces")
    p.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N records")
    p.add_argument("--think-start", default="<think>", metavar="TEXT", help="opens thinking")
    p.add_argument("--think-end", default="</think>", metavar="TEXT", help="closes thinking")
    p.add_argument("--seed", type=int, default=0, help="seed of the continuations tried")
    p.add_argument("-v", "--verbose", action="store_true", help="say more")
    p.add_argument("-q", "--quiet", action="store_true", help="say less, no progress bar")
    return top


def run(
    records: list[Record], chosen: Contract | None, args: argparse.Namespace
) -> tuple[list[Replayed], int]:
    """Replay all records; also how many asked for no contract."""
    from tqdm import tqdm

    count = token_counter(args.tokenizer)
    tails = [record.text[-400:] for record in records]
    replayed, skipped = [], 0
    for record in tqdm(records, desc="replay", disable=args.quiet or not sys.stderr.isatty()):
        named = (chosen.name, chosen) if chosen is not None else guess(record)
        if named is None:
            skipped += 1
            continue
        name, made = named
        letters = getattr(made, "letters", "ABCDEFGHIJ")
        replayed.append(
            replay_record(
                record,
                name,
                made,
                grader=usual_grader(name, letters),
                count=count,
                continuations=tails,
                think_start=args.think_start,
                think_end=args.think_end,
                seed=args.seed,
            )
        )
    return replayed, skipped


def _heuristic(one: Replayed, chosen: Contract | None) -> bool:
    if chosen is not None:
        return chosen.heuristic
    named = guess(one.record)
    return named is not None and named[1].heuristic


def _print(rows: list[dict[str, Any]], skipped: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("contract", "model", title="ACE replay")
    for column in ("n", "committed", "early", "unsound", "faithful", "tokens saved"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["contract"],
            row["model"],
            str(row["n"]),
            str(row["committed"]),
            str(row["committed_early"]),
            str(row["unsound"]),
            f"{row['faithful']}/{row['judged']}" if row["judged"] else "-",
            f"{row['answer_tokens_saved']} ({row['answer_tokens_saved_share']:.1%})",
        )
    console = Console()
    if console.width < 110 and not console.is_terminal:
        console = Console(width=110)
    console.print(table)
    if skipped:
        console.print(f"{skipped} records ask for no contract; give --contract to replay them too.")


def _disagreement(one: Replayed) -> dict[str, Any]:
    tail = one.record.text[max(0, one.position - 60) : one.position + 60]
    return {
        "id": one.record.id,
        "contract": one.contract,
        "model": one.record.model,
        "task": one.record.task,
        "committed": one.answer,
        "graded": one.graded,
        "gold": one.record.gold,
        "early": one.early,
        "position": one.position,
        "around": tail,
    }


def _print_disagreements(disagreements: list[Replayed]) -> None:
    for one in disagreements:
        shown = _disagreement(one)
        print(
            f"{shown['id']} [{shown['contract']}, {shown['model']}] "
            f"committed {shown['committed']!r}, grader {shown['graded']!r}, "
            f"gold {shown['gold']!r}\n    {shown['around']!r}"
        )
    print(f"{len(disagreements)} disagreements")
