"""The error that every refused contract raises."""

from __future__ import annotations

from specexit.errors import SpecExitError


class ContractError(SpecExitError, ValueError):
    """A contract's specification is wrong; the message names the field, the value and the fix."""
