"""`specexit bench WHAT ...`: each measurement is a module with `main(argv) -> exit code`."""

from __future__ import annotations

import importlib
import sys

# what: (module, one line of help)
BENCHES: dict[str, tuple[str, str]] = {
    "run": (
        "inference.study.bench",
        "accuracy, tokens and latency of all systems, interleaved",
    ),
    "overhead": ("inference.bench.overhead", "what a step costs more than in stock vLLM"),
    "soak": ("inference.bench.soak", "thousands of mixed requests: wrong, leaked, memory"),
    "replay": ("inference.study.bench_replay", "how fast policies are evaluated on a table"),
    "train": ("training.bench", "training speed with and without signals, packed and not"),
    "committer": ("specexit.ace.bench_cli", "cost of a contract for each token"),
}


def main(argv: list[str]) -> int:
    """Run one measurement."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    name, rest = argv[0], argv[1:]
    if name not in BENCHES:
        print(f"specexit bench: {name!r} is not a measurement\n\n{usage()}", file=sys.stderr)
        return 2
    module = BENCHES[name][0]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        print(f"specexit bench {name}: {module} is not part of this version", file=sys.stderr)
        return 1
    return int(found.main(rest) or 0)


def usage() -> str:
    """The text of `specexit bench --help`."""
    width = max(map(len, BENCHES))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in BENCHES.items()]
    return (
        "usage: specexit bench WHAT [options]\n\nmeasurements:\n"
        + "\n".join(lines)
        + "\n\n`specexit bench WHAT --help` says more about one."
    )
