"""Engines of the test session: built on demand, shared by arguments, the oldest closed first."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine import oracle
from tests.engine.chaos import START, make_head, make_target
from tests.engine.exits import ORACLE, draft, ids, params

MOST = 3  # engines alive at once


def hide_numba() -> None:
    """Hide one module of numba's, which n-gram drafts load, from the next engine that starts.

    An engine that starts in a process looks at every attribute of every loaded module
    (`vllm.triton_utils.dispatcher`), and falls over `llvmlite.binding.ffi.lib`, which claims to
    have every attribute.
    """
    sys.modules.pop("llvmlite.binding.ffi", None)


@pytest.fixture(autouse=True, scope="module")
def without_numba() -> None:
    """For the engines that a test file makes itself."""
    hide_numba()


class EnginePool:
    """In-process `vllm.LLM` objects, keyed by their arguments."""

    def __init__(self) -> None:
        self._engines: OrderedDict[str, Any] = OrderedDict()

    def get(self, model: str, **arguments: Any) -> Any:
        """An engine with these arguments (fp32, eager, small, unless told otherwise)."""
        from vllm import LLM

        full = {
            "model": model,
            "max_model_len": 512,
            "dtype": "float32",
            "enforce_eager": True,
            "max_num_seqs": 8,
            "seed": 0,
            "block_size": 32,
            **arguments,
        }
        key = repr(sorted(full.items()))
        if key in self._engines:
            self._engines.move_to_end(key)
            return self._engines[key]
        while len(self._engines) >= MOST:
            _, oldest = self._engines.popitem(last=False)
            shut(oldest)
            del oldest
            gc.collect()
        hide_numba()
        self._engines[key] = LLM(**full)
        return self._engines[key]

    def close(self) -> None:
        """Shut all engines."""
        while self._engines:
            shut(self._engines.popitem()[1])
        gc.collect()


def shut(llm: Any) -> None:
    """Stop an engine, so that its KV cache can be freed."""
    core = getattr(llm.llm_engine, "engine_core", None)
    if core is not None:
        # engines of one process share its groups, which the first to go has destroyed
        with contextlib.suppress(ValueError, AssertionError):
            core.shutdown()


@pytest.fixture(scope="session")
def engine() -> Iterator[Callable[..., Any]]:
    """`engine(model, **arguments)` -> a shared `vllm.LLM`; do not change its settings."""
    pool = EnginePool()
    yield pool.get
    pool.close()


@pytest.fixture(scope="session")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a random `target` and heads `linear`, `mlp`, `memory` for it."""
    folder = tmp_path_factory.mktemp("chaos")
    make_target(folder / "target")
    for kind in ("linear", "mlp", "memory"):
        make_head(folder / kind, folder / "target", kind)
    return folder


@pytest.fixture(scope="session")
def prompts() -> list[Any]:
    """Twelve random prompts of several lengths that open the thinking."""
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(9, 60, (int(n),), generator=generator).tolist() for n in range(3, 27, 2)]
    return [{"prompt_token_ids": [*row, START]} for row in rows]


@pytest.fixture(scope="session")
def stock(engine: Callable[..., Any], chaos: Path, prompts: list[Any]) -> list[list[int]]:
    """Greedy outputs of the target alone, without drafts and without SpecExit."""
    outputs = engine(str(chaos / "target")).generate(prompts, params())
    oracle.learn(outputs)
    return ids(outputs)


@pytest.fixture(scope="session")
def main(engine: Callable[..., Any], chaos: Path, stock: list[list[int]]) -> Callable[[], Any]:
    """The engine of most tests: memory head, three drafts, true ones three times in four."""
    return lambda: engine(str(chaos / "target"), **draft(chaos, "memory", 3), **ORACLE)
