"""The error that every refused contract raises."""

from __future__ import annotations

from specexit.errors import ConfigError

MOST = 400  # characters of a message: it goes into logs and HTTP answers


def shorten(text: str) -> str:
    """`text`, its middle left out where it is long."""
    half = MOST // 2
    return text if len(text) <= MOST else f"{text[:half]} ... {text[-half:]}"


class ContractError(ConfigError, ValueError):
    """A contract's specification is wrong; the message names the field, the value and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__(shorten(message))
