from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from specexit.split import StepSplitter
from specexit.think import ThinkFormat
from specexit.tiny.data import problems
from specexit.tiny.tokenizer import VOCABULARY, prompt_text


def test_any_text_survives_a_round_trip(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == VOCABULARY
    for text in ("ends in nine: 49.\n\nΣ ≠ 漢字\t\r\n", "  spaces  ", "</think>\n\n\\boxed{12}."):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [tokenizer.decode([i]) for i in tokenizer.encode("4096")] == ["4", "0", "9", "6"]


def test_blank_lines_merge_with_the_full_stop(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.encode("\n\n")) == 1
    assert len(tokenizer.encode(".\n\n")) == 1
    assert len(tokenizer.encode(".\n")) == 1
    assert len({tokenizer.encode(text)[0] for text in ("\n\n", ".\n\n", ".\n", "\n", ".")}) == 5


def test_the_chat_template_is_the_prompt_of_training(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "Compute 1+2."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == prompt_text("Compute 1+2.")
    off = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert off == text + "<think>\n\n</think>\n\n"


def test_think_tags_are_single_ids_and_survive_skipping_special_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    think = ThinkFormat.from_tokenizer(tokenizer)
    assert len(think.start_ids) == len(think.end_ids) == 1
    kept = tokenizer.decode([*think.start_ids, *think.end_ids], skip_special_tokens=True)
    assert kept == "<think></think>"


def test_the_splitter_finds_one_boundary_for_each_paragraph_but_the_last(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    splitter = StepSplitter.from_tokenizer(tokenizer)
    for _, trace in problems("heldout", 20, seed=1):
        ids = tokenizer.encode(f"\n{trace.thinking}\n")
        assert len(splitter.boundaries(ids)) == len(trace.paragraphs)
