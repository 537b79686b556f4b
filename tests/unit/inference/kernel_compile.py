"""Compile the exit kernel for GPUs that need not be here; prints a line of JSON."""

from __future__ import annotations

import json

import torch

from inference.vllm.exit_kernel import constants
from inference.vllm.exit_state import ExitState
from specexit.heads.signal import SignalHead
from specexit.split import StepSplitter
from specexit.think import ThinkFormat

INT64 = "slots inputs sampled num_sampled history forced start_ids end_ids out_sampled out_count "
INT64 += "out_injected out_begun out_ended out_position"
INT32 = "counts limits out_tokens out_boundary"
BOOL = "flags modes ignored blank_line starts_newline ends_newline connective out_takes"


def pointer(name: str) -> str:
    """Triton's type of a parameter."""
    for kind, names in (("*i64", INT64), ("*i32", INT32), ("*u8", BOOL)):
        if name in names.split():
            return kind
    return "i32" if name == "forced_width" else "*fp32"


def main() -> None:
    """A linear and a memory head of the usual size, three drafts, one- and three-token tags."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from inference.vllm.exit_program import exit_program

    names = exit_program.arg_names
    found = {}
    for architecture in (80, 90):
        for kind, think in (
            ("linear", ThinkFormat((0,), (1,))),
            ("memory", ThinkFormat((), (1, 2, 3))),
        ):
            head = SignalHead(kind, 8)  # type: ignore[arg-type]
            splitter = StepSplitter.from_texts(["a"] * 8, vocab_size=9)
            state = ExitState(1, head, think, splitter, torch.device("cpu"))
            fixed = constants(state, 4)
            source = ASTSource(
                fn=exit_program,
                signature={n: "constexpr" if n in fixed else pointer(n) for n in names},
                constexprs={(names.index(n),): value for n, value in fixed.items()},
            )
            kernel = compile(
                source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 1}
            )
            found[f"sm_{architecture} {kind}"] = {
                "bytes": len(kernel.asm["cubin"]),
                "spilled": kernel.asm["ptx"].count(".local"),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
