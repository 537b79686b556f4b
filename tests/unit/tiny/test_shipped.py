from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from specexit import tiny
from specexit.errors import ConfigError
from specexit.tiny import model_path, questions
from specexit.tiny.settings import TrainSettings
from specexit.tiny.tokenizer import prompt_text


def test_the_files_are_small_and_say_how_they_were_made() -> None:
    folder = model_path()
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 20e6
    record = json.loads((folder / "provenance.json").read_text())
    assert record["command"].startswith("specexit tiny train")
    assert record["config"]["steps"] == TrainSettings().steps
    heldout = record["metrics"]["heldout"]
    assert heldout["n"] >= 500
    assert heldout["accuracy"] >= 0.93
    assert 0.35 <= heldout["stable_ratio"] <= 0.5


def test_the_tokenizer_is_the_one_that_training_makes(tokenizer: PreTrainedTokenizerFast) -> None:
    shipped = AutoTokenizer.from_pretrained(model_path())
    assert shipped.get_vocab() == tokenizer.get_vocab()
    assert shipped.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert shipped.chat_template == tokenizer.chat_template


@torch.no_grad()
def test_it_thinks_and_answers_held_out_questions() -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path(), padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)
    records = [q for q in questions("heldout", 60, 99) if q["steps"] <= 2][:12]
    prompts = [prompt_text(record["question"]) for record in records]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    outputs = model.generate(**inputs, do_sample=False, max_new_tokens=450)
    texts = tokenizer.batch_decode(outputs[:, inputs.input_ids.shape[1] :])
    right = 0
    for record, text in zip(records, texts, strict=True):
        thinking, _, answer = text.partition("</think>")
        assert thinking.startswith("<think>\nOkay, ")
        right += f"\\boxed{{{record['gold']}}}" in answer
    assert right >= 10


def test_missing_weights_name_the_command_that_remakes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(tiny, "_FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="specexit tiny train"):
        model_path()
