"""Prompts and recorded outputs as token ids."""

from __future__ import annotations

from typing import Any

from data_build.config import Reading
from data_build.questions import Question
from specexit.think import ThinkFormat


def prompt_ids(tokenizer: Any, question: Question, settings: Reading) -> list[int]:
    """The chat template's prompt; without a template the messages' text, line by line."""
    if tokenizer.chat_template is None:
        text = "\n".join(message["content"] for message in question.messages) + "\n"
    else:
        text = tokenizer.apply_chat_template(
            question.messages,
            tokenize=False,
            add_generation_prompt=True,
            **settings.chat_template_kwargs,
        )
    return list(tokenizer.encode(text, add_special_tokens=False))


def output_ids(tokenizer: Any, think: ThinkFormat, prompt: list[int], output: str) -> list[int]:
    """Ids of a recorded output, which thinks where its record says so.

    A chat template may open the thinking, and a server may cut the opening tag off. So a tag that
    the prompt already opened is dropped, and one is put before an output that only closes.
    """
    ids = list(tokenizer.encode(output, add_special_tokens=False))
    tag = list(think.start_ids)
    if think.is_thinking(prompt):
        return ids[len(tag) :] if tag and ids[: len(tag)] == tag else ids
    if tag and think.locate(prompt, ids) is None:
        opened = think.locate([*prompt, *tag], ids)
        if opened is not None and opened.end is not None:
            return [*tag, *ids]
    return ids
