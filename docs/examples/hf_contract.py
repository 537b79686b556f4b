"""Contracts with transformers: a stopping criterion for a batch, and chunks of K tokens.

python docs/examples/hf_contract.py [TARGET]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference.hf_chunks import generate_in_chunks
from inference.hf_stop import ContractStoppingCriteria
from specexit import tiny


def main() -> None:
    """Answer three questions of different length in one batch; each row stops on its own."""
    target = sys.argv[1] if len(sys.argv) > 1 else str(tiny.model_path())
    tokenizer = AutoTokenizer.from_pretrained(target, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": item["question"]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for item in tiny.questions("heldout", 3)
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    stop = ContractStoppingCriteria("boxed_integer", tokenizer, inputs["input_ids"].shape[1])
    model.generate(**inputs, max_new_tokens=800, do_sample=False, stopping_criteria=[stop])
    for text, answer, tokens in zip(stop.texts, stop.answers, stop.tokens, strict=True):
        print(f"{tokens:4} tokens, answer {answer}: {text[-30:]!r}")

    def generate(ids: torch.Tensor, mask: torch.Tensor, n: int) -> torch.Tensor:
        return model.generate(ids, attention_mask=mask, max_new_tokens=n, do_sample=False)

    ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    for row in generate_in_chunks(generate, ids, "boxed_integer", tokenizer, max_new_tokens=800):
        answer = None if row.commit is None else row.commit.answer
        print(f"{row.tokens:4} tokens in chunks, answer {answer}")


if __name__ == "__main__":
    main()
