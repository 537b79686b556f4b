"""`exit_step.step` as one Triton kernel, for GPUs: one program a request, one launch a step.

The same rule as the torch path, which is its oracle. A `memory` head's GRU runs inside, at
boundaries only; its weights are read from the cache of the device. What stays outside is what
matrix units do better for the whole batch: the projection, and the readout of an `mlp` head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inference.vllm import exit_step
from inference.vllm.exit_state import ExitState
from inference.vllm.exit_step import StepInputs, StepResult

Step = Callable[[ExitState, StepInputs], StepResult]
MOST_ROWS = 64  # of a memory head: one warp holds a [D, D] tile in registers


def step_for(device: torch.device | str) -> Step:
    """The exit step for a device: the kernel on a GPU with Triton, torch elsewhere."""
    if torch.device(device).type != "cuda" or not has_triton():
        return exit_step.step
    return KernelStep()


def has_triton() -> bool:
    """Whether Triton can be imported."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


class KernelStep:
    """`exit_step.step` by the kernel; keeps the tag ids on the device between steps."""

    def __init__(self) -> None:
        from inference.vllm.exit_program import exit_program

        self._program: Any = exit_program
        self._tags: tuple[ExitState, Tensor, Tensor] | None = None

    @torch.inference_mode()
    def __call__(self, state: ExitState, batch: StepInputs) -> StepResult:
        """Advance the state and decide; see `exit_step.step`."""
        head = state.head
        if head.is_stateful and head.rows > MOST_ROWS:
            return exit_step.step(state, batch)
        values = batch.z if head.kind != "mlp" else head.readout(batch.z)
        B, W = batch.sampled.shape
        device = batch.sampled.device

        def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device=device)

        takes = empty(B, W, dtype=torch.bool)
        result = StepResult(
            sampled=empty(B, W),
            num_sampled=empty(B),
            injected=empty(B),
            begun=empty(B),
            ended=empty(B),
            signals=empty(B, W, 3, dtype=torch.float32),
            takes=takes,
            smoothed=empty(B, 3, dtype=torch.float32),
            position=empty(B),
            tokens=empty(B, dtype=torch.int32),
            boundary=empty(B, dtype=torch.int32),
        )
        starts, ends = self._tag_tensors(state)
        split = state.splitter
        self._program[(B,)](
            batch.slots,
            batch.inputs.contiguous(),
            batch.sampled.contiguous(),
            batch.num_sampled,
            values.contiguous(),
            state.counts,
            state.flags.view(torch.uint8),
            state.floats,
            state.history,
            state.limits,
            state.modes.view(torch.uint8),
            state.levels,
            state.ignored.view(torch.uint8),
            state.forced,
            state.blank,
            split.contains_blank_line.view(torch.uint8),
            split.starts_with_newline.view(torch.uint8),
            split.ends_with_newline.view(torch.uint8),
            split.is_connective.view(torch.uint8),
            starts,
            ends,
            *self._weights(state),
            result.sampled,
            result.num_sampled,
            result.injected,
            result.begun,
            result.ended,
            result.signals,
            takes.view(torch.uint8),
            result.smoothed,
            result.position,
            result.tokens,
            result.boundary,
            state.forced.shape[1],
            num_warps=1,
            **constants(state, W),
        )
        return result

    def _tag_tensors(self, state: ExitState) -> tuple[Tensor, Tensor]:
        if self._tags is None or self._tags[0] is not state:
            ids = (state.start_ids or (0,), state.end_ids)
            starts, ends = (torch.tensor(i, dtype=torch.int64, device=state.device) for i in ids)
            self._tags = (state, starts, ends)
        return self._tags[1:]

    @staticmethod
    def _weights(state: ExitState) -> list[Tensor]:
        """GRU and readout of a `memory` head; stand-ins that are never read for the others."""
        head = state.head
        if not head.is_stateful:
            return [state.blank] * 8
        gru, first, last = head.gru, head.readout[0], head.readout[2]
        return [
            gru.weight_ih,
            gru.weight_hh,
            gru.bias_ih,
            gru.bias_hh,
            first.weight,  # type: ignore[list-item]
            first.bias,  # type: ignore[list-item]
            last.weight,  # type: ignore[list-item]
            last.bias,  # type: ignore[list-item]
        ]


def constants(state: ExitState, width: int) -> dict[str, int]:
    """What the kernel is compiled for."""
    from triton import next_power_of_2

    head = state.head
    memory = int(head.is_stateful)
    rows = head.rows if memory else 1
    readout = head.readout[0].out_features if memory else 1
    H = state.history.shape[1]
    return {
        "W": width,
        "W_PADDED": next_power_of_2(width),
        "H": H,
        "H_PADDED": next_power_of_2(H),
        "MEMORY": memory,
        "D": rows,
        "D_PADDED": next_power_of_2(rows),
        "R": readout,
        "R_PADDED": next_power_of_2(readout),
        "FLOATS": state.floats.shape[1],
        "START_LENGTH": len(state.start_ids),
        "END_LENGTH": len(state.end_ids),
    }
