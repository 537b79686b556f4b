"""Settings of a training run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from specexit.config import Settings
from specexit.heads.eagle3_config import LayerStyle
from specexit.heads.signal import Kind


class DraftSettings(Settings):
    """The draft head. `init_from` starts from a trained head; then the shape comes from there. An
    MTP head has its target's shape, and starts from the target's own MTP layer where it has one."""

    method: Literal["eagle3", "mtp"] = "eagle3"
    """vLLM's speculative method."""
    init_from: str | None = None
    """Folder of a head (own, or a published EAGLE3 head) to start from."""
    freeze: bool = False
    """Train no draft parameter, only the signals (`eagle3` needs `init_from`)."""
    style: LayerStyle = "llama"
    """Layer of the draft: `llama` loads everywhere, `qwen3` adds norms over heads."""
    aux_layer_ids: tuple[int, ...] | None = None
    """vLLM's auxiliary layer ids; default: three spread over the target's depth."""
    num_attention_heads: int | None = Field(None, ge=1)
    """Attention heads of the draft, and as many for keys and values; default: the target's."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of the draft's MLP; default: the target's."""
    draft_vocab_size: int | None = Field(None, ge=1)
    """Most frequent tokens of the training set that the draft may propose; default: all."""
    norm_before_residual: bool = False
    """The layer's residual is the normed hidden state."""
    norm_before_fc: bool = False
    """One norm over all auxiliary states before `fc`; it is shared with the signal head."""
    fc_norm: bool = False
    """One norm for each auxiliary state before `fc`; shared with the signal head."""
    norm_output: bool = False
    """Further draft steps are fed the state after the final norm."""

    @model_validator(mode="after")
    def _check(self) -> DraftSettings:
        if self.freeze and self.init_from is None and self.method == "eagle3":
            raise ValueError("freeze: true needs init_from: the folder of a trained head")
        if self.method == "mtp":
            surplus = self.model_fields_set - {"method", "init_from", "freeze"}
            if surplus:
                names = ", ".join(sorted(surplus))
                raise ValueError(f"method mtp takes its shape from the target; remove {names}")
        return self


class TokenSettings(Settings):
    """The token loss, unrolled over draft steps (EAGLE3's training-time test)."""

    ttt_steps: int = Field(3, ge=1, le=16)
    """Draft steps that are unrolled."""
    decay: float = Field(0.8, gt=0, le=1)
    """Weight of step k is decay**k."""
    targets: Literal["soft", "hard"] = "soft"
    """`soft`: the target's distribution over the draft's vocabulary; `hard`: the data's tokens."""
    span: Literal["full", "minimal", "both"] = "full"
    """`full`: the whole output; `minimal`: the thinking is cut at the sufficient point, then the
    think end and the answer (the paper); `both`: one of each."""


class SignalSettings(Settings):
    """The signal heads, their labels and losses."""

    heads: tuple[Kind, ...] = ("memory",)
    """Kinds to train; the first is the one that HEAD carries, others go to HEAD-<kind>. Empty: a
    plain draft without signals."""
    source: Literal["features", "draft"] = "features"
    """What they read: what the draft's input projection reads, or the draft layer's own output (an
    ablation: such a head can be evaluated, not served)."""
    joint: bool = False
    """With `source: draft`: the signal losses train the draft layer too."""
    rows: int = Field(32, ge=1)
    """D, output rows of the projection (`mlp`, `memory`)."""
    readout_size: int = Field(64, ge=1)
    """Hidden width of the readout."""
    boundary_weight: float = Field(50.0, ge=1)
    """Weight of a boundary token against another one (`memory` reads boundaries only)."""
    confidence: Literal["confidence", "confidence_agrees"] = "confidence"
    """`confidence_agrees`: zero where the trial answer is not yet the final one."""
    keep_redundant: bool = True
    """Also train on the tokens after the sufficient point (progress 1, remain 0)."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout on the standardised features."""
    refine_epochs: int = Field(40, ge=0)
    """Epochs over the kept features after the joint training: signals need more of them than
    tokens do, and the features of a frozen target do not change."""
    refine_tokens: int = Field(48, ge=1)
    """Tokens between boundaries that `linear` and `mlp` refine on in each trace, drawn once; they
    stand for all of them (their weights are scaled up)."""
    refine_batch: int = Field(64, ge=1)
    """Traces in one refinement step."""
    lr: float = Field(2e-3, gt=0)
    """Peak learning rate of the signal heads."""
    weight_decay: float = Field(0.05, ge=0)
    """AdamW weight decay of the signal heads."""

    @model_validator(mode="after")
    def _check(self) -> SignalSettings:
        if len(set(self.heads)) != len(self.heads):
            raise ValueError(f"heads names a kind twice: {list(self.heads)}")
        if self.joint and self.source != "draft":
            raise ValueError("joint: true needs source: draft; what features read is not trained")
        return self


class BalanceSettings(Settings):
    """Weights of the three signal losses."""

    mode: Literal["gradient", "fixed", "uncertainty"] = "gradient"
    """`gradient`: from gradient norms (DESIGN section 7); `fixed`: `weights`; `uncertainty`:
    learned log-variances."""
    ratio: float = Field(1.0, gt=0)
    """rho: wanted ratio of a signal's weighted gradient norm to the token loss's."""
    min_weight: float = Field(1e-3, gt=0)
    """Lower clip of a weight."""
    max_weight: float = Field(1e3, gt=0)
    """Upper clip of a weight."""
    ema: float = Field(0.9, ge=0, lt=1)
    """Decay of the running gradient norms."""
    every: int = Field(1, ge=1)
    """Measure the norms every so many steps."""
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Confidence, progress, remain in mode `fixed`, and the start of the others."""
    loss_scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors on the raw losses, to test a balance."""

    @model_validator(mode="after")
    def _check(self) -> BalanceSettings:
        if self.min_weight > self.max_weight:
            raise ValueError(f"min_weight {self.min_weight} is above max_weight {self.max_weight}")
        return self


class OptimSettings(Settings):
    """Optimiser of the joint training: AdamW, warm-up, cosine."""

    epochs: int = Field(1, ge=1)
    """Passes over the training split."""
    max_steps: int | None = Field(None, ge=1)
    """Stop after so many optimiser steps."""
    lr: float = Field(1e-3, gt=0)
    """Peak learning rate of the draft."""
    min_lr_ratio: float = Field(0.01, ge=0, le=1)
    """Final learning rate over the peak."""
    warmup_steps: int = Field(20, ge=0)
    """Linear warm-up."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW weight decay of the draft."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW betas."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of a moving average of the weights, such as 0.999; the averages are then validated and
    exported. Not with parameters that are sharded (zero3, fsdp2)."""
    clip: float = Field(1.0, gt=0)
    """Largest gradient norm of a group; draft and signals are clipped apart."""


class BatchSettings(Settings):
    """Packing."""

    row_length: int = Field(1024, ge=8)
    """Tokens of a packed row. A longer trace has a row of its own."""
    max_length: int = Field(16384, ge=8)
    """Longer traces are cut off here."""
    rows: int = Field(8, ge=1)
    """Rows of one optimiser step, over all processes and accumulation steps."""
    accumulation: int = Field(1, ge=1)
    """Micro batches of one step."""


class FeatureSettings(Settings):
    """Where the target's hidden states come from."""

    mode: Literal["memory", "online", "stored"] = "memory"
    """`memory`: computed once, kept in RAM; `online`: the frozen target runs in every step;
    `stored`: files of `specexit train features`."""
    memory_gib: float = Field(8.0, gt=0)
    """Largest size of the features in `memory` mode; beyond it the run refuses to start."""
    folder: str | None = None
    """Folder of the stored features."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype that the target runs in; auto: its config's, on a CPU float32 (bfloat16 has no fast
    kernels on many of them)."""

    @model_validator(mode="after")
    def _check(self) -> FeatureSettings:
        if self.mode == "stored" and self.folder is None:
            raise ValueError("mode stored needs folder: what `specexit train features` wrote")
        return self


class CheckpointSettings(Settings):
    """Checkpoints to resume from."""

    every: int = Field(0, ge=0)
    """Write one every so many steps; 0: none."""
    keep_last: int = Field(2, ge=1)
    """Older ones are removed."""
    best: Literal["loss_token", "loss_signals", "acceptance"] | None = None
    """Also keep the checkpoint whose validation figure is best, and export that one."""


class ValidationSettings(Settings):
    """Figures on traces that are held out of the training split."""

    every: int = Field(0, ge=0)
    """Compute them every so many steps, and after the last one; 0: never, nothing is held out."""
    traces: int = Field(64, ge=1)
    """Traces to hold out, drawn by the seed."""


class TrainConfig(Settings):
    """A whole run."""

    data: str
    """Folder that `specexit data build` wrote."""
    target: str = "tiny"
    """Folder or hub name of the target; `tiny`: the built-in reasoner."""
    draft: DraftSettings = DraftSettings()
    """The draft head."""
    token: TokenSettings = TokenSettings()
    """Token loss."""
    signals: SignalSettings = SignalSettings()
    """Signal heads and losses."""
    balance: BalanceSettings = BalanceSettings()
    """Loss weights."""
    optim: OptimSettings = OptimSettings()
    """Optimiser."""
    batch: BatchSettings = BatchSettings()
    """Packing and batch size."""
    features: FeatureSettings = FeatureSettings()
    """Source of hidden states."""
    validation: ValidationSettings = ValidationSettings()
    """Held-out figures while training."""
    checkpoint: CheckpointSettings = CheckpointSettings()
    """Checkpoints."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Compute of the draft; parameters, optimiser and signals stay fp32."""
    export_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the exported draft; auto: the target's."""
    engine: Literal["any", "single", "ddp", "zero1", "zero2", "zero3", "fsdp2"] = "any"
    """Refuse to start unless launched so."""
    seed: int = 0
    """Seed of everything random."""
    log_every: int = Field(10, ge=1)
    """Steps between log lines."""
    tracker: Literal["none", "wandb"] = "none"
    """Further tracker beside log.jsonl (wandb obeys WANDB_MODE)."""

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        best = self.checkpoint.best
        if best is not None and not self.validation.every:
            raise ValueError(f"checkpoint.best: {best} needs validation.every")
        if best == "loss_signals" and not self.signals.heads:
            raise ValueError("checkpoint.best: loss_signals needs signals.heads")
        return self
