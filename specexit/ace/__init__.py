"""ACE on existing outputs: what an early commit saves, and whether it keeps the answer."""

from __future__ import annotations

from .accounting import Account, aggregate
from .replay import Replayed, replay_record

__all__ = ["Account", "Replayed", "aggregate", "replay_record"]
