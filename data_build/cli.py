"""`specexit data`: build, merge, verify, import and inspect training data."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

# sub-command: (module with main(argv) -> exit code, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("data_build.commands.build", "questions to labelled traces"),
    "merge": ("data_build.commands.merge", "join the parts that `build --shard` made"),
    "import": ("data_build.commands.imports", "existing outputs to traces, with a report"),
    "verify": ("data_build.commands.verify", "check a dataset against fresh brute force"),
    "inspect": ("data_build.commands.inspect", "show one trace in the terminal"),
}


def main(argv: list[str]) -> int:
    """Run one sub-command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"specexit data: {argv[0]!r} is not a command\n\n{usage()}", file=sys.stderr)
        return 2
    return int(import_module(COMMANDS[argv[0]][0]).main(argv[1:]) or 0)


def usage() -> str:
    """The text of `specexit data --help`."""
    lines = [f"  {name:<8}  {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: specexit data COMMAND [options]\n\n"
        "Turn a reasoning model's outputs into training data for early exit.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\n"
        "`specexit data COMMAND --help` says more about one."
    )


def shard_of(text: str) -> tuple[int, int]:
    """Parse `i/n`, with 0 <= i < n."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not i/n with 0 <= i < n, such as 0/8")
    return int(index), int(count)
