"""`specexit data verify`."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console

from specexit.cli import parser, set_verbosity
from specexit.files import write_json


def main(argv: list[str]) -> int:
    """Compare sufficient boundaries with brute force; exit code 1 where they differ."""
    p = parser(
        "data verify",
        "Generate every boundary's trial answer again, without prefix caching and without early "
        "stops, and compare the sufficient boundaries with the dataset's.",
        json=True,
    )
    p.add_argument("folder", metavar="DIR", help="folder that `specexit data build` wrote")
    p.add_argument("--brute-force", type=int, default=200, metavar="N", help="traces to check")
    args = p.parse_args(argv)
    set_verbosity(args)
    from data_build.verification import verify

    if args.brute_force < 1:
        p.error(f"--brute-force: {args.brute_force} is not a positive number")
    found = verify(args.folder, args.brute_force, progress=not args.quiet)
    if args.json:
        write_json(args.json, asdict(found))
    console = Console()
    console.print(
        f"{found.equal} of {found.n} traces have the k* of brute force; {found.trials_equal} of "
        f"{found.trials} trial answers came out the same"
    )
    for entry in found.different[:20]:
        console.print(f"  {entry['id']}: k* {entry['k_star']}, brute force {entry['brute_force']}")
    return 0 if found.equal == found.n and found.n else 1
