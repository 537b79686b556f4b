"""The error that every refused contract raises."""

from __future__ import annotations

from specexit.errors import ConfigError


class ContractError(ConfigError, ValueError):
    """A contract's specification is wrong; the message names the field, the value and the fix.

    Long values are shortened in the middle: a message goes into logs and HTTP answers.
    """

    MOST = 400  # characters

    def __init__(self, message: str) -> None:
        if len(message) > self.MOST:
            half = self.MOST // 2
            message = f"{message[:half]} ... {message[-half:]}"
        super().__init__(message)
