"""SpecExit: stop reasoning models when they have thought enough."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specexit.committer import Commit, Committer
    from specexit.contracts import contract
    from specexit.policy import ExitPolicy

__version__ = "0.1.0"

_LAZY = {
    "Commit": "specexit.committer",
    "Committer": "specexit.committer",
    "contract": "specexit.contracts",
    "ExitPolicy": "specexit.policy",
}

__all__ = ["Commit", "Committer", "ExitPolicy", "__version__", "contract"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use: `import specexit` stays cheap."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'specexit' has no attribute {name!r}")
