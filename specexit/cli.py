"""`specexit COMMAND ...`: finds the command's module and hands over; nothing else is imported."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys

from specexit import __version__
from specexit.errors import SpecExitError

# command: (module with main(argv) -> exit code, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("inference.study.demo", "the whole pipeline on the built-in reasoner"),
    "data": ("data_build.cli", "build, import, verify and inspect training data"),
    "train": ("training.cli", "train and evaluate a draft head with signals"),
    "head": ("training.head_cli", "export, import and check a head"),
    "serve": ("inference.vllm.serve", "serve a target and its head with vLLM"),
    "replay": ("inference.study.replay_cli", "record a replay table, evaluate a policy on it"),
    "ablate": ("inference.study.ablate", "compare signals, thresholds and smoothing"),
    "calibrate": ("inference.study.calibrate", "choose thresholds with a guarantee"),
    "bench": ("inference.bench.cli", "accuracy, tokens, latency, overhead, soak"),
    "report": ("specexit.report.cli", "turn results into a table and a page"),
    "contract": ("specexit.contracts.cli", "check an answer contract on a text"),
    "ace": ("specexit.ace.cli", "replay contracts on existing outputs"),
    "tiny": ("specexit.tiny.cli", "the built-in reasoner: remake, evaluate, questions"),
    "doctor": ("inference.vllm.doctor", "what works on this machine, and why not"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"specexit {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(f"specexit: {name!r} is not a command\n\n{usage()}", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(COMMANDS[name][0]).main(rest) or 0)
    except SpecExitError as error:
        print(f"specexit {name}: {error}", file=sys.stderr)
        return 2 if _is_usage(error) else 1
    except KeyboardInterrupt:
        print(f"\nspecexit {name}: interrupted; run it again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def usage() -> str:
    """The text of `specexit --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: specexit COMMAND [options]\n\n"
        "Make reasoning models stop when they have thought enough.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\n"
        "`specexit COMMAND --help` says more about one."
    )


def parser(
    command: str,
    description: str,
    *,
    config: bool = False,
    out: bool = False,
    json: bool = False,
    seed: bool = False,
) -> argparse.ArgumentParser:
    """An argument parser with the options that commands share, spelled the same everywhere."""
    p = argparse.ArgumentParser(
        prog=f"specexit {command}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    if config:
        p.add_argument("--config", metavar="FILE", help="YAML file with the settings")
        p.add_argument(
            "overrides", nargs="*", metavar="key.sub=value", help="settings that win over the file"
        )
    if out:
        p.add_argument("--out", metavar="DIR", required=True, help="folder to write to")
    if json:
        p.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    if seed:
        p.add_argument("--seed", type=int, default=0, help="seed of everything random")
    p.add_argument("-v", "--verbose", action="store_true", help="say more")
    p.add_argument("-q", "--quiet", action="store_true", help="say less, no progress bars")
    return p


def set_verbosity(args: argparse.Namespace) -> None:
    """Configure logging from -v and -q."""
    level = logging.DEBUG if args.verbose else logging.WARNING if args.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    for noisy in ("httpx", "urllib3", "filelock", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _is_usage(error: SpecExitError) -> bool:
    from specexit.errors import ConfigError

    return isinstance(error, ConfigError)


if __name__ == "__main__":
    sys.exit(main())
