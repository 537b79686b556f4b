"""Errors that a caller may want to catch."""

from __future__ import annotations


class SpecExitError(Exception):
    """Base of errors that a user can mend: the message names the field, the value, the fix."""


class ConfigError(SpecExitError):
    """A setting is unknown, missing or out of range."""


class CheckpointError(SpecExitError):
    """A head's files are incomplete, or do not belong to this target."""
