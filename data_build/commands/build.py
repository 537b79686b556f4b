"""`specexit data build`."""

from __future__ import annotations

from data_build.cli import shard_of
from data_build.config import DataSettings
from specexit.cli import parser, set_verbosity
from specexit.config import load


def main(argv: list[str]) -> int:
    """Generate, probe, label and write."""
    p = parser(
        "data build",
        "Generate full outputs, probe their boundaries, label them and write Parquet. A killed "
        "run goes on where it stopped when the same command is run again.",
        config=True,
        out=True,
    )
    p.add_argument(
        "--shard",
        type=shard_of,
        default=(0, 1),
        metavar="i/n",
        help="make only every n-th batch, as one of n jobs that share the folder; then merge",
    )
    p.add_argument("--dry-run", action="store_true", help="say what would be done, and its cost")
    args = p.parse_args(argv)
    set_verbosity(args)
    settings = load(DataSettings, args.config, args.overrides)
    if args.dry_run:
        from data_build.estimate import describe

        print(describe(settings, args.out))
        return 0
    from data_build.run import run
    from data_build.summary import print_summary

    stats = run(settings, args.out, shard=args.shard, progress=not args.quiet)
    if stats is not None:
        print_summary(stats, args.out)
    return 0
