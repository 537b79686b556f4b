"""vLLM's hidden state connector for a machine without a GPU.

Stock `ExampleHiddenStatesConnector` (vLLM 0.32) copies through pinned memory on a CUDA stream and
fails on CPU. This one writes at once. Loaded by vLLM through `kv_connector_module_path`.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)


class _Written:
    """Stands for a finished CUDA event."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class CpuHiddenStatesConnector(ExampleHiddenStatesConnector):
    """Writes `hs_{i}.safetensors` synchronously."""

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids, dtype=torch.int64)
        offsets = torch.arange(self._block_size)
        slots = (blocks[:, None] * self._block_size + offsets).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0])
        os.makedirs(os.path.dirname(pending.filename), exist_ok=True)
        lock = self._lock_fds.pop(pending.req_id, None)
        try:
            tensors = {
                "hidden_states": states.contiguous().clone(),
                "token_ids": pending.token_ids.clone(),
            }
            save_file(tensors, pending.filename)
        finally:
            if lock is not None:
                os.close(lock)
        self._req_copy_events[pending.req_id] = _Written()
