"""`specexit data inspect`."""

from __future__ import annotations

from rich.console import Console

from specexit.cli import parser, set_verbosity


def main(argv: list[str]) -> int:
    """Show one trace with its boundaries, trial answers and labels."""
    p = parser("data inspect", "Show one trace with its boundaries, trial answers and labels.")
    p.add_argument("folder", metavar="DIR", help="folder that `specexit data build` wrote")
    p.add_argument("--id", required=True, metavar="X", help="the trace's id, or #n for the n-th")
    args = p.parse_args(argv)
    set_verbosity(args)
    from data_build.build import load_tokenizer
    from data_build.inspection import show
    from data_build.verification import settings_of

    settings = settings_of(args.folder)
    tokenizer = load_tokenizer(settings.tokenizer or settings.target_path())
    show(args.folder, args.id, tokenizer, Console())
    return 0
