"""`specexit tiny`: the built-in reasoner, its questions and its training."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specexit.cli import parser, set_verbosity
from specexit.files import write_json, write_text
from specexit.tiny.data import SPLITS

_TEXT = "The built-in reasoner: a tiny Qwen3 that thinks too long and sometimes corrects itself."


def main(argv: list[str]) -> int:
    """Run one sub-command; exit codes as in `specexit.cli.main`."""
    runs = {"train": _train, "questions": _questions, "eval": _evaluate, "path": _path}
    p = argparse.ArgumentParser(prog="specexit tiny", description=_TEXT)
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, add) in _OPTIONS.items():
        common = parser(f"tiny {name}", text, seed=name != "path")
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            parents=[common],
            conflict_handler="resolve",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        add(sub)
    args = p.parse_args(argv)
    set_verbosity(args)
    return runs[args.command](args)


def _train_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--out", type=Path, metavar="DIR", required=True, help="new folder to write")
    p.add_argument("--steps", type=int, default=_default_steps(), help="training steps")
    p.add_argument("--threads", type=int, default=1, help="CPU threads; weights depend on it")
    p.add_argument("--resume", action="store_true", help="go on with an interrupted run")


def _questions_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--split", choices=SPLITS, default="heldout", help="which set")
    p.add_argument("--n", type=int, default=500, help="number of questions")
    p.add_argument("--out", type=Path, metavar="FILE", required=True, help="JSON lines to write")


def _evaluate_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("model", nargs="?", type=Path, help="folder; the shipped model if left out")
    p.add_argument("--split", choices=SPLITS, default="heldout", help="which set")
    p.add_argument("--n", type=int, default=1000, help="number of questions")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of vLLM")
    p.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")


_OPTIONS = {
    "train": ("remake the weights from scratch", _train_options),
    "questions": ("write questions as JSON lines", _questions_options),
    "eval": ("measure accuracy, redundancy and forced exits with vLLM", _evaluate_options),
    "path": ("print the folder of the shipped model", lambda p: None),
}


def _default_steps() -> int:
    from specexit.tiny.settings import TrainSettings

    return TrainSettings().steps


def _train(args: argparse.Namespace) -> int:
    from specexit.tiny.settings import TrainSettings
    from specexit.tiny.train import train

    settings = TrainSettings(steps=args.steps, seed=args.seed, threads=args.threads)
    print(json.dumps(train(args.out, settings, resume=args.resume, quiet=args.quiet)))
    return 0


def _questions(args: argparse.Namespace) -> int:
    from specexit.tiny.data import questions

    records = questions(args.split, args.n, args.seed)
    write_text(args.out, "".join(f"{json.dumps(record)}\n" for record in records))
    print(f"{len(records)} questions in {args.out}")
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from specexit.tiny import model_path
    from specexit.tiny.evaluate import evaluate, table

    figures = evaluate(
        args.model or model_path(),
        split=args.split,
        n=args.n,
        seed=args.seed,
        dtype=args.dtype,
        quiet=args.quiet,
    )
    if args.json:
        write_json(args.json, figures)
    print(table(figures))
    return 0


def _path(args: argparse.Namespace) -> int:
    from specexit.tiny import model_path

    print(model_path())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
