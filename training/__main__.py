"""`python -m training` = `specexit train`, for launchers that start modules."""

from __future__ import annotations

import sys

from specexit.errors import SpecExitError
from training.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SpecExitError as error:
        sys.exit(f"specexit train: {error}")
