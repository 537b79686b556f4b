"""Settings of `specexit data`: what is asked, of which model, how it is probed and labelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from specexit.config import Settings
from specexit.dataset import Split
from specexit.split import SplitMode

Strategy = Literal["stable", "first", "bisect", "all"]


class ThinkTags(Settings):
    """Tags of the thinking, for tokenizers whose vocabulary does not hold known ones."""

    start: str | None = None
    """Text that opens the thinking; null: found in the tokenizer."""
    end: str | None = None
    """Text that closes it; null: found in the tokenizer."""


class Fields(Settings):
    """Which column of the input holds what. Columns that are absent count as null."""

    id: str = "id"
    """Unique id; a missing one becomes the question's hash."""
    question: str = "question"
    """The question's text."""
    messages: str = "messages"
    """A chat (list of role and content), used where there is no question."""
    gold: str = "gold"
    """Reference answer."""
    contract: str = "contract"
    """Answer contract of this row, where it is not the same for all."""
    output: str = "output"
    """An existing output of the target; a row that has one is not generated again."""
    model: str = "model"
    """The model that wrote `output`, for the report."""


class Source(Settings):
    """One origin of questions."""

    source: Literal["tiny", "jsonl", "parquet", "datasets"]
    """`tiny`: the built-in reasoner's generator; else files, or a `datasets` name or folder."""
    path: str | None = None
    """File, glob (`jsonl`, also `.gz`; `parquet`) or `datasets` name or folder."""
    name: str | None = None
    """Configuration name of a `datasets` data set."""
    part: str = "train"
    """Split to read: of `datasets`, or of the built-in generator (train, heldout, shifted)."""
    n: int | None = Field(default=None, ge=1)
    """Read at most this many rows."""
    seed: int = 0
    """Seed of the built-in generator."""
    split: Split | None = None
    """Put every question into this split instead of going by its hash."""
    fields: Fields = Fields()
    """Column names."""
    contracts: dict[str, str | dict[str, Any]] = Field(default_factory=dict)
    """What the values of the contract column mean, such as {math: boxed_math}; a value that is not
    listed takes the general contract. Empty: the column holds contracts themselves."""

    @model_validator(mode="after")
    def _has_path(self) -> Source:
        if self.source == "tiny":
            if self.n is None:
                raise ValueError("source tiny needs n, the number of questions")
            if self.part not in ("train", "heldout", "shifted"):
                raise ValueError(f"part {self.part!r} of tiny is not train, heldout or shifted")
        elif not self.path:
            raise ValueError(f"source {self.source} needs path")
        return self


class Engine(Settings):
    """Where the target runs."""

    kind: Literal["vllm", "openai"] = "vllm"
    """`vllm`: in this process; `openai`: one or many OpenAI-compatible vLLM endpoints."""
    dtype: str = "auto"
    """vLLM's dtype."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share one copy of the target."""
    data_parallel_size: int = Field(default=1, ge=1)
    """Copies of the target: as many processes, each with its own share of the batches."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Longest prompt plus output; null: the model's own."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Requests that the engine runs at a time."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """KV cache in GiB on a CPU; null: the environment's VLLM_CPU_KVCACHE_SPACE, else 1."""
    block_size: int | None = Field(default=None, ge=1)
    """Tokens of a KV block, the grain of prefix caching; null: 32 on a CPU, else vLLM's own."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `vllm.LLM`, such as gpu_memory_utilization or quantization."""
    endpoints: tuple[str, ...] = ()
    """Base URLs, such as http://node1:8000/v1 (`openai`)."""
    model: str | None = None
    """Name under which the endpoints serve the target; null: the first that they list."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key, where the endpoints want one."""
    send_contract: bool = True
    """Send the contract with a trial request, so that a server with SpecExit's plug-in stops as
    soon as the answer is final; others ignore it (off: for servers that refuse unknown fields)."""
    concurrency: int = Field(default=64, ge=1)
    """Requests in flight at each endpoint."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds to wait for one response."""
    retries: int = Field(default=6, ge=0)
    """Further attempts after a failure (429, 5xx, time-out, broken or garbled response)."""
    backoff_s: float = Field(default=1.0, gt=0)
    """Wait before the first retry; doubled each time, with jitter, at most 60 s."""
    max_error_share: float = Field(default=0.1, ge=0, le=1)
    """Stop when more than this share of a batch's requests failed for good (`openai`)."""

    @field_validator("endpoints")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} does not start with http:// or https://")
        return tuple(url.rstrip("/") for url in value)

    @model_validator(mode="after")
    def _has_endpoints(self) -> Engine:
        if self.kind == "openai" and not self.endpoints:
            raise ValueError("kind openai needs endpoints, a list of base URLs")
        return self


class Sampling(Settings):
    """How the full outputs are sampled. Trial answers are always greedy."""

    temperature: float = Field(default=0.0, ge=0)
    """0: greedy, which is what makes a data set reproducible bit by bit."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus."""
    top_k: int = Field(default=-1, ge=-1)
    """-1: off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Smallest probability relative to the likeliest token."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """1: off."""
    max_tokens: int = Field(default=32768, ge=1)
    """Longest output; one that reaches it is dropped as unfinished."""


class Probe(Settings):
    """Which boundaries get a trial answer."""

    strategy: Strategy = "stable"
    """`stable`, `first`, `bisect`: as few as the search needs; `all`: every boundary."""
    strategy_by_split: dict[Split, Strategy] = Field(default_factory=dict)
    """Another strategy for a split, such as `test: all` for replay tables."""
    search: Literal["stable", "first"] = "stable"
    """Rule for the sufficient boundary where the strategy is `all`."""
    window: int = Field(default=2, ge=1)
    """Boundaries that a sequential search probes at once in each trace."""
    spread: int = Field(default=3, ge=0)
    """Further probes, evenly over the boundaries that the search left out, for the confidence
    label."""
    verify: Literal["full", "spread"] = "full"
    """`bisect`: probe all later boundaries (exact), or only log-many of them."""
    every: int = Field(default=1, ge=1)
    """Probe every n-th boundary only."""
    min_gap_tokens: int = Field(default=0, ge=0)
    """Leave out boundaries that are closer than this to the one before."""
    max_answer_tokens: int = Field(default=1024, ge=1)
    """Longest trial answer; one that is not final by then counts as none. A real model writes a
    solution before its box; the contract ends the trial there."""


class Label(Settings):
    """How the signals' labels are made."""

    confidence: Literal["answer", "answer_agrees", "window"] = "answer"
    """`answer`: geometric mean probability of the trial answer; `answer_agrees`: the same, 0 where
    it disagrees; `window`: of the target's own tokens over the paragraph so far."""
    keep_redundant: bool = True
    """Label the tokens after the sufficient boundary too (progress 1, remain 0)."""


class Reading(Settings):
    """What is read, and how it becomes prompts."""

    contract: str | dict[str, Any] | None = None
    """Answer contract of all questions; null: every row brings its own."""
    questions: tuple[Source, ...] = Field(min_length=1)
    """Origins of questions, read in this order."""
    system: str | None = None
    """System message."""
    prompt: str = "{question}"
    """Template of the user's message."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the chat template, such as enable_thinking."""
    think: ThinkTags = ThinkTags()
    """Think tags."""
    step_split: SplitMode = "paragraph"
    """Where a paragraph ends."""
    fractions: tuple[float, float, float] = (0.7, 0.15, 0.15)
    """Shares of train, calibration and test."""

    @field_validator("prompt")
    @classmethod
    def _template(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError("the template must contain {question}")
        return value

    @field_validator("fractions")
    @classmethod
    def _sum(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) < 0 or abs(sum(value) - 1) > 1e-6:
            raise ValueError("three shares, none negative, that add up to 1")
        return value


class DataSettings(Reading):
    """The file that `specexit data build --config` reads."""

    target: str
    """The reasoning model: a folder, a hub name, or `tiny` for the built-in one."""
    tokenizer: str | None = None
    """Its tokenizer, where it is not the target's."""
    engine: Engine = Engine()
    """Where the target runs."""
    sampling: Sampling = Sampling()
    """Sampling of the full outputs."""
    probe: Probe = Probe()
    """Trial answers."""
    label: Label = Label()
    """Labels."""
    require_correct: bool = False
    """Drop traces whose full answer is wrong (needs gold)."""
    batch_size: int = Field(default=256, ge=1)
    """Questions of one unit of work: one Parquet file; a killed run repeats at most one."""
    seed: int = 0
    """Seed of sampling."""

    def strategy(self, split: Split) -> Strategy:
        """The probing strategy of a split."""
        return self.probe.strategy_by_split.get(split, self.probe.strategy)

    def target_path(self) -> str:
        """The target as a path or hub name."""
        if self.target != "tiny":
            return str(Path(self.target).expanduser()) if _is_path(self.target) else self.target
        from specexit.tiny import model_path

        return str(model_path())


def _is_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or Path(name).exists()
