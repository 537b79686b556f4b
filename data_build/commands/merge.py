"""`specexit data merge`."""

from __future__ import annotations

from specexit.cli import parser, set_verbosity


def main(argv: list[str]) -> int:
    """Join the parts that `build --shard` made."""
    p = parser(
        "data merge",
        "Join the parts that `specexit data build --shard i/n` made: one folder that all jobs "
        "filled, or several folders (then give --out).",
    )
    p.add_argument("folders", nargs="+", metavar="DIR", help="folders of the parts")
    p.add_argument("--out", metavar="DIR", help="folder to write to; default: the only part")
    args = p.parse_args(argv)
    set_verbosity(args)
    if args.out is None and len(args.folders) > 1:
        p.error("--out: give the folder that the parts are to be joined in")
    from data_build.merging import merge
    from data_build.summary import print_summary

    out = args.out or args.folders[0]
    print_summary(merge(args.folders, out), out)
    return 0
