"""An asynchronous output that brings a step's record along."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.outputs import AsyncModelRunnerOutput

from inference.vllm.session import Outcome, Session


class RecordedOutput(AsyncModelRunnerOutput):
    """Around vLLM's output, which does not refer to it: both go with their last use.

    Args:
        packed: `record.pack` of the step, on its way to the host.
        copied: event of that copy; None where vLLM's own output waits for a later one.
    """

    def __init__(
        self, output: Any, session: Session, outcome: Outcome, packed: Tensor, copied: Any = None
    ) -> None:
        self._output, self._session, self._outcome = output, session, outcome
        self._packed, self._copied = packed, copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def get_output(self) -> Any:
        """The step's output, with its record attached."""
        done = self._output.get_output()
        if self._copied is not None:
            self._copied.synchronize()
        self._session.note(self._outcome, self._packed.tolist(), done)
        return done
