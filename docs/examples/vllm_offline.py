"""Contracts in `LLM.generate`: no server, no head; the plug-in loads with vLLM.

python docs/examples/vllm_offline.py [TARGET]
"""

from __future__ import annotations

import sys

from specexit import tiny
from specexit.engine_env import base_engine_arguments, prepare_in_process_engine


def main() -> None:
    """Answer questions with the built-in reasoner (or TARGET), with and without a contract."""
    prepare_in_process_engine()  # before vLLM is imported
    from vllm import LLM, SamplingParams

    target = sys.argv[1] if len(sys.argv) > 1 else str(tiny.model_path())
    llm = LLM(**base_engine_arguments(target, max_model_len=1024))
    questions = [item["question"] for item in tiny.questions("heldout", 3)]
    chats = [[{"role": "user", "content": question}] for question in questions]
    for extra in (None, {"contract": "boxed_integer"}):
        params = SamplingParams(temperature=0, max_tokens=800, extra_args=extra)
        for output in llm.chat(chats, params, use_tqdm=False):
            one = output.outputs[0]
            ended = one.stop_reason or one.finish_reason
            print(f"{len(one.token_ids):4} tokens, ended by {ended}: {one.text[-30:]!r}")


if __name__ == "__main__":
    main()
