"""`specexit report DIR`: the table and the page of a folder with a results.json."""

from __future__ import annotations

from pathlib import Path

from specexit.cli import parser, set_verbosity
from specexit.files import read_json
from specexit.report.page import write_page
from specexit.report.table import print_table


def main(argv: list[str]) -> int:
    """Print the table of `DIR/results.json` and write `DIR/report.html`."""
    p = parser("report", "Print a run's table and write its page.")
    p.add_argument("folder", help="folder with a results.json, as demo and bench write it")
    args = p.parse_args(argv)
    set_verbosity(args)
    page = write_page(args.folder)
    results = read_json(Path(args.folder) / "results.json")
    print_table(results["rows"], results["meta"].get("title", ""))
    print(f"page: {page}")
    return 0
