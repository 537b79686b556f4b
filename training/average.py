"""An exponential moving average of trained weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class WeightAverage:
    """Running average of parameters: after each step, avg = decay * avg + (1 - decay) * weight.

    The first update copies the weights.

    Args:
        parameters: the live ones, whole on this process.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self._live = nn.ParameterList(parameters)
        self._average = AveragedModel(self._live, multi_avg_fn=get_ema_multi_avg_fn(decay))

    def update(self) -> None:
        """Take the live weights in."""
        self._average.update_parameters(self._live)

    @torch.no_grad()
    def apply(self) -> None:
        """Overwrite the live weights with the average."""
        for live, average in zip(self._live, self._average.module.parameters(), strict=True):
            live.copy_(average)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The live weights are the average inside, and what they were afterwards."""
        kept = [p.detach().clone() for p in self._live]
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                for live, value in zip(self._live, kept, strict=True):
                    live.copy_(value)

    def state_dict(self) -> dict[str, Tensor]:
        """Averages and the number of updates."""
        return dict(self._average.state_dict())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from `state_dict`."""
        self._average.load_state_dict(state)
