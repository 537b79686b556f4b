"""The error that every refused contract raises."""

from __future__ import annotations

from specexit.errors import ConfigError


class ContractError(ConfigError, ValueError):
    """A contract's specification is wrong; the message names the field, the value and the fix."""
