"""`specexit bench run | replay | overhead | soak`."""

from __future__ import annotations

import importlib
import sys

# command: (module with main(argv) -> exit code, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("inference.study.bench", "accuracy, tokens and latency of all systems in one run"),
    "replay": ("inference.study.bench_replay", "policies a second of the replay"),
    "overhead": ("inference.bench.overhead", "what the worker adds to a step"),
    "soak": ("inference.bench.soak", "many short requests; counts what is wrong or leaks"),
}


def main(argv: list[str]) -> int:
    """Dispatch to a sub-command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"specexit bench: {argv[0]!r} is not a command\n\n{usage()}", file=sys.stderr)
        return 2
    return int(importlib.import_module(COMMANDS[argv[0]][0]).main(argv[1:]) or 0)


def usage() -> str:
    """The text of `specexit bench --help`."""
    lines = [f"  {name:<9} {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: specexit bench COMMAND [options]\n\ncommands:\n"
        + "\n".join(lines)
        + "\n\n`specexit bench COMMAND --help` says more about one."
    )
