"""`specexit train`, and `accelerate launch ... -m training` for several processes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from specexit.cli import parser, set_verbosity
from specexit.config import load


def main(argv: list[str]) -> int:
    """Entry point. `train eval ...`, `train signals ...` and `train features ...` are commands of
    their own; anything else trains."""
    if argv and argv[0] == "eval":
        from training.evaluate_cli import main as evaluate

        return evaluate(argv[1:])
    if argv and argv[0] == "signals":
        return train_signals(argv[1:])
    if argv and argv[0] == "features":
        from training.features_cli import main as features

        return features(argv[1:])
    return train_head(argv)


def train_head(argv: list[str]) -> int:
    """`specexit train --config FILE --out HEAD [--resume] [key=value ...]`."""
    from training.config import TrainConfig

    p = parser(
        "train",
        "Train a draft head with signals. Further commands: train eval, train signals, "
        "train features (each has --help).",
        config=True,
        out=True,
    )
    p.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in DIR")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    config = load(TrainConfig, args.config, args.overrides)
    return _train(config, args.out, resume=args.resume, quiet=args.quiet, argv=argv)


def train_signals(argv: list[str]) -> int:
    """`specexit train signals --draft HEAD --kind linear --out HEAD2`."""
    from specexit.heads.draft import is_eagle3
    from training.config import TrainConfig

    p = parser(
        "train signals",
        "Train a signal head for an existing draft, which stays as it is.",
        config=True,
        out=True,
    )
    p.add_argument("--draft", metavar="HEAD", required=True, help="trained or published head")
    p.add_argument("--kind", choices=("linear", "mlp", "memory"), default="memory")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    overrides = [
        *args.overrides,
        f"draft.method={'eagle3' if is_eagle3(args.draft) else 'mtp'}",
        f"draft.init_from={args.draft}",
        "draft.freeze=true",
        f"signals.heads=[{args.kind}]",
    ]
    config = load(TrainConfig, args.config, overrides)
    return _train(config, args.out, resume=False, quiet=args.quiet, argv=["signals", *argv])


def _train(config: object, out: str, *, resume: bool, quiet: bool, argv: list[str]) -> int:
    from training.config import TrainConfig
    from training.run import train

    assert isinstance(config, TrainConfig)
    command = shlex.join(["specexit", "train", *argv])
    written = train(config, Path(out), command=command, resume=resume, progress=not quiet)
    for folder in written:
        print(f"head: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
