"""Record raw signals of known traces offline: one teacher-forced pass of the target per batch.

The numbers are the engine's (to 1e-4 in float32): the same auxiliary states, normalisation, head
and order of operations; only the kernels differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from specexit.checkpoint import check_target, load_signal_head, target_facts
from specexit.dataset import Trace
from specexit.errors import ConfigError
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.signal import activate

_LOGIT_ROWS = 512  # rows of logits held at once for the entropy


@dataclass(frozen=True)
class Recorded:
    """One trace's token columns.

    Attributes:
        signals: `[T, 3] float32`, raw.
        entropy: `[T] float32`, nats, of the distribution after each thinking token.
        end_entropy: `[K + 1] float32`, the same after a think end injected at each boundary; None
            unless asked for.
    """

    signals: NDArray[np.float32]
    entropy: NDArray[np.float32]
    end_entropy: NDArray[np.float32] | None = None


class SignalRecorder:
    """A target and a head, loaded once.

    Args:
        target: folder or hub name of the target.
        head: folder of a head with signals.
        dtype: of the target's computation, such as `float32`; take the engine's.
        end_entropy: also record the entropy after injected think ends: a second pass a trace.

    Raises:
        CheckpointError: the head belongs to another target.
        ConfigError: the head is no EAGLE3 head.
    """

    def __init__(
        self,
        target: str | Path,
        head: str | Path,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        end_entropy: bool = False,
    ) -> None:
        from transformers import AutoModelForCausalLM

        self.signal_head, self.metadata = load_signal_head(head)
        if self.metadata.method != "eagle3":
            raise ConfigError(
                f"replay record: the head's method is {self.metadata.method!r}; offline recording "
                "knows eagle3 only"
            )
        check_target(self.metadata, target_facts(target))
        self.draft = Eagle3Head.load(head)
        model = AutoModelForCausalLM.from_pretrained(str(target), dtype=getattr(torch, dtype))
        self.model = model.to(device).eval().requires_grad_(False)
        self.device = device
        self.end_entropy = end_entropy
        self._captured: dict[int, Tensor] = {}
        layers = self.model.get_decoder().layers
        for i in self.metadata.aux_layer_ids:
            if i < len(layers):
                layers[i].register_forward_pre_hook(self._keep_input(i), with_kwargs=True)
            else:
                layers[-1].register_forward_hook(self._keep_output(i))

    def record(
        self, traces: Sequence[Trace], *, batch_size: int = 8, quiet: bool = False
    ) -> list[Recorded]:
        """Signals of each trace, in order; long traces run together with long ones."""
        order = sorted(range(len(traces)), key=lambda i: traces[i].think_end)
        found: dict[int, Recorded] = {}
        with tqdm(total=len(traces), desc="record", unit="trace", disable=quiet) as bar:
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                found |= zip(rows, self._batch([traces[i] for i in rows]), strict=True)
                bar.update(len(rows))
        return [found[i] for i in range(len(traces))]

    @torch.inference_mode()
    def features(self, traces: Sequence[Trace], *, quiet: bool = False) -> list[Tensor]:
        """What the draft's projection reads at every thinking token: `[T, F] float16` a trace."""
        found = []
        for trace in tqdm(traces, desc="features", unit="trace", disable=quiet):
            text = [*trace.prompt_ids, *trace.output_ids[: trace.think_end]]
            self._run(input_ids=torch.tensor([text], device=self.device))
            begin = len(trace.prompt_ids) + trace.think_start
            found.append(self._features()[0, begin:].half().clone())
        return found

    @torch.inference_mode()
    def _batch(self, traces: Sequence[Trace]) -> Iterator[Recorded]:
        texts = [[*t.prompt_ids, *t.output_ids[: t.think_end]] for t in traces]
        ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = torch.tensor(text)
        # right padding needs no mask: causal attention never looks at it
        final = self._run(input_ids=ids.to(self.device))
        features = self._features()
        for i, trace in enumerate(traces):
            begin = len(trace.prompt_ids) + trace.think_start
            end = len(trace.prompt_ids) + trace.think_end
            ended = self._after_think_ends(trace, texts[i]) if self.end_entropy else None
            yield self._one(trace, features[i, begin:end], final[i, begin:end], ended)

    def _features(self) -> Tensor:
        """`[B, T, F] float32` of the pass that ran last."""
        aux = torch.cat([self._captured[i] for i in self.metadata.aux_layer_ids], -1)
        return self.draft.normalise(aux.float().cpu())

    def _run(self, **inputs: Any) -> Tensor:
        """Last hidden states `[B, T, H]`, after the final norm."""
        out = self.model.get_decoder()(use_cache=False, **inputs)
        states: Tensor = out.last_hidden_state
        return states

    def _after_think_ends(self, trace: Trace, text: Sequence[int]) -> Tensor:
        """Last hidden states `[K + 1, H]` at think ends injected at each boundary.

        All of them hang on one pass over the text, as branches: the attention mask shows each
        one the text up to its boundary and itself, at the position that it would have.
        """
        ends = list(self.metadata.think_end_ids)
        begin = len(trace.prompt_ids) + trace.think_start
        starts = [begin + b for b in trace.boundaries]
        n, size = len(text), len(text) + len(starts) * len(ends)
        positions = list(range(n)) + [s + j for s in starts for j in range(len(ends))]
        sees = torch.zeros(size, size, dtype=torch.bool)
        sees[:n, :n] = torch.ones(n, n, dtype=torch.bool).tril()
        for k, start in enumerate(starts):
            first = n + k * len(ends)
            branch = slice(first, first + len(ends))
            sees[branch, :start] = True
            sees[branch, branch] = torch.ones(len(ends), len(ends), dtype=torch.bool).tril()
        final = self._run(
            input_ids=torch.tensor([[*text, *ends * len(starts)]], device=self.device),
            attention_mask=sees[None, None].to(self.device),
            position_ids=torch.tensor([positions], device=self.device),
        )
        return final[0, n + len(ends) - 1 :: len(ends)]

    def _one(self, trace: Trace, features: Tensor, final: Tensor, ended: Tensor | None) -> Recorded:
        T = len(features)
        marks = torch.tensor(trace.boundaries[1:], dtype=torch.int64)
        is_boundary = torch.zeros(1, T, dtype=torch.bool)
        is_boundary[0, marks - 1] = True
        z = self.signal_head.project(features)
        logits = self.signal_head(z[None], is_boundary)[0]
        return Recorded(
            signals=activate(logits).numpy().astype(np.float32).reshape(T, 3),
            entropy=self._entropy(final),
            end_entropy=None if ended is None else self._entropy(ended),
        )

    def _entropy(self, final: Tensor) -> NDArray[np.float32]:
        parts = [np.zeros(0, np.float32)]
        for start in range(0, len(final), _LOGIT_ROWS):
            rows = self.model.get_output_embeddings()(final[start : start + _LOGIT_ROWS]).float()
            logs = rows.log_softmax(-1)
            parts.append(-(logs.exp() * logs).sum(-1).cpu().numpy())
        return np.concatenate(parts).astype(np.float32)

    def _keep_input(self, i: int) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._captured[i] = args[0] if args else kwargs["hidden_states"]

        return hook

    def _keep_output(self, i: int) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            self._captured[i] = output[0] if isinstance(output, tuple) else output

        return hook
