"""A tiny real model on disk. Tests run on one thread, as they compare bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from synth.trainer.learner.data.images import ImageLoader
from tests.unit.inference.tiny_model import save_tiny_model

# ChatML as Qwen3 writes it: thinking of turns before the last question is stripped.
_TEMPLATE = (
    "{%- set ns = namespace(last=0) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' and '</think>' in m.content and loop.index0 < ns.last %}"
    "{%- set text = m.content.split('</think>')[-1].lstrip() %}"
    "{%- else %}{% set text = m.content %}{% endif %}"
    "{{- '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vision_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3_vl(tmp_path_factory.mktemp("models") / "tiny-vl").path


@pytest.fixture(scope="session")
def loader(vision_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageLoader:
    """What the tiny vision model is shown, and the folder of it."""
    return ImageLoader.load(vision_dir, tmp_path_factory.mktemp("images"))
