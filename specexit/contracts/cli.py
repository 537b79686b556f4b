"""`specexit contract check`: try a contract on a text."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specexit.committer import Committer

from .base import Contract
from .errors import ContractError
from .registry import contract, names


def main(argv: list[str]) -> int:
    """Run `specexit contract ...`. Exit codes: 0 an answer, 1 none, 2 wrong usage."""
    args = _parser().parse_args(argv)
    if args.command == "list":
        for name in names():
            print(name)
        return 0
    try:
        made = contract(args.contract)
    except ContractError as error:
        print(f"specexit contract check: {error}", file=sys.stderr)
        return 2
    if args.text is None:
        print(f"contract.{made.name}: well formed\n{json.dumps(made.spec(), ensure_ascii=False)}")
        return 0
    text = _text(args.text)
    tagged = args.think_start in text or args.think_end in text
    thinking: bool | str = args.thinking == "yes"
    if args.thinking == "auto" and tagged:
        thinking = "auto"
    return _check(made, text, thinking, args)


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="specexit contract", description="Answer contracts.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    p = commands.add_parser(
        "check",
        help="check a contract, and try it on a text",
        description="Says whether the contract is well formed; with --text, where a stream of that "
        "text would commit and to what. Exit code 0: there is an answer; 1: none; 2: wrong usage.",
    )
    p.add_argument("--contract", required=True, metavar="NAME|FILE|JSON", help="the contract")
    p.add_argument("--text", metavar="TEXT|FILE|-", help="an output, its file, or - for stdin")
    p.add_argument("--thinking", choices=("auto", "yes", "no"), default="auto", help=_THINKING)
    p.add_argument("--think-start", default="<think>", metavar="TEXT", help="opens thinking")
    p.add_argument("--think-end", default="</think>", metavar="TEXT", help="closes thinking")
    p.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    commands.add_parser("list", help="name the contracts that are known here")
    return top


_THINKING = (
    "does the output begin inside the thinking (yes), has it none (no), or go by tags (auto)"
)


def _text(value: str) -> str:
    if value == "-":
        return sys.stdin.read()
    try:
        if Path(value).is_file():
            return Path(value).read_text(encoding="utf-8")
    except OSError:  # too long for a path, say
        pass
    return value


def _check(made: Contract, text: str, thinking: bool | str, args: argparse.Namespace) -> int:
    committer = Committer(
        made, thinking=thinking, think_start=args.think_start, think_end=args.think_end
    )
    commit = next((c for c in map(committer.feed, text) if c is not None), None)
    early = commit is not None
    commit = commit or committer.close()
    result = {
        "contract": made.name,
        "committed": commit is not None,
        "early": early,
        "answer": None if commit is None else commit.answer,
        "position": None if commit is None else commit.position,
        "characters": len(text),
    }
    if args.json:
        from specexit.files import write_json

        write_json(args.json, result)
    if commit is None:
        print(f"{made.name}: no answer in {len(text)} characters")
        return 1
    where = f"at character {commit.position} of {len(text)}" if early else "at the end of the text"
    print(f"{made.name}: {json.dumps(commit.answer, ensure_ascii=False)} committed {where}")
    if early:
        print(f"kept: ...{text[max(0, commit.position - 60) : commit.position]!r}")
    return 0
