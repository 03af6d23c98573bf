"""Files, inference and trainer make the same token ids of conversations with images, thoughts among them or not."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.chat.messages import TrainingRow, image_parts
from synth.chat.template import ChatTemplate
from synth.files.image_rows import draft_row, fill_slot
from synth.images.prompt_image import expand_image_tokens
from synth.inference.chat.prompts import ChatFormat, TokenHistory
from synth.inference.engines.protocol import EngineImage
from synth.inference.tokenizers import load_tokenizer
from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from synth.trainer.learner.data import sft_dataset
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.sft_images import SftImages
from tests.decoders import DECODER
from tests.image_server import data_uri
from tests.unit.chat.test_parity import CALL, EOS, LITERALS, Json, Turn, line_of, replies_of, request, says, talk, tool
from tests.unit.inference.vision_model import picture

RED, BLUE = picture(1), picture(2, 96, 64)


def show(*bodies: bytes, text: str = "What is it?") -> Json:
    parts = [{"type": "image_url", "image_url": {"url": data_uri(body)}} for body in bodies]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def looked(body: bytes) -> Json:
    return tool([{"type": "text", "text": "seen:"}, {"type": "image", "image": data_uri(body)}])


CONVERSATIONS: dict[str, Json] = {
    "an answer": talk(show(RED), says("red")),
    "a thought": talk(show(RED), says("red", reasoning_content="it is not blue")),
    "a thought in the text": talk(show(RED), says("<think>\nnot blue\n</think>\n\nred")),
    "a thought that is stripped": talk(
        show(RED), says("red", reasoning_content="not blue"), show(BLUE, text="And this?"), says("blue")
    ),
    "a thought in each of three turns": talk(
        show(RED), says("red", reasoning_content="a"), show(BLUE, RED), says("both", reasoning_content="b"),
        show(text="Sure?"), says("yes", reasoning_content="c"),
    ),
    "thoughts between a tool's images": talk(
        show(RED), says(None, reasoning_content="look", tool_calls=[CALL]), looked(BLUE),
        says(None, reasoning_content="again", tool_calls=[CALL]), looked(RED), says("red"),
    ),
    "a turn without a thought among some with": talk(
        show(RED), says(None, reasoning_content="look", tool_calls=[CALL]), looked(BLUE),
        says("hm", tool_calls=[CALL]), looked(RED), says("red", reasoning_content="so"),
    ),
    "a thought and a row's own image": {
        **talk(show(text="What?"), says("red", reasoning="so")), "images": [data_uri(RED)]
    },
    "literals in thoughts": talk(show(RED, text=LITERALS), says("red", reasoning=LITERALS), show(BLUE), says("blue")),
}  # fmt: skip


@dataclass
class Vision:
    """A tiny Qwen3-VL, and the images of its conversations: as the trainer reads them, and as inference does."""

    folder: Path
    images: SftImages
    bodies: dict[str, bytes]

    def stored(self, row: Json) -> bytes:
        """The line that the files service keeps of a row: its images are named by their blobs."""
        draft = draft_row(line_of(row))
        assert draft is not None
        for slot in draft.slots:
            [uri] = [uri for uri, body in self.bodies.items() if data_uri(body) == slot.address]
            fill_slot(slot, uri)
        return draft.line()

    def shown(self, uri: str) -> EngineImage:
        return EngineImage(self.images.loader.describe(uri), self.bodies[uri], DECODER)


@pytest.fixture(scope="module", params=["asked", "always"])
def vision(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vision:
    base = tmp_path_factory.mktemp("vl")
    folder = make_tiny_qwen3_vl(base / "tiny", thinking=request.param == "always").path
    loader = ImageLoader.load(folder, base / "images")
    loader.folder.mkdir()
    bodies: dict[str, bytes] = {}
    for body in (RED, BLUE):
        digest = hashlib.sha256(body).hexdigest()
        (loader.folder / digest).write_bytes(body)
        bodies[f"blob://orgs/org_a/images/{digest}"] = body
    return Vision(folder, SftImages(loader, 9), bodies)


def turns_of_files(line: bytes, vision: Vision) -> list[Turn]:
    tokenizer: Any = load_tokenizer(vision.folder).full
    template, row = ChatTemplate(tokenizer, sees=True), msgspec.json.decode(line, type=TrainingRow)
    prepared, turns = template.prepare(row.conversation()), list[Turn]()
    text, ids = "", list[int]()
    for index, message in enumerate(row.messages):
        if message.role != "assistant":
            continue
        before, through = template.assistant_turn(prepared, index)
        if not (text and before.startswith(text)):
            text, ids = "", []
        prompt = ids + template.encode(before[len(text) :])
        text = through[: through.rindex(EOS) + len(EOS)]
        ids = prompt + template.encode(text[len(before) :])
        images = vision.images.shown_by(row.messages[:index])
        turns.append(
            (
                expand_image_tokens(prompt, images, template.image_token),
                expand_image_tokens(ids, images, template.image_token),
            )
        )
    return turns


def turns_of_inference(line: bytes, vision: Vision) -> list[Turn]:
    chat, history, turns = ChatFormat.load(vision.folder), TokenHistory(), list[Turn]()
    row: Json = msgspec.json.decode(line)
    for index in replies_of(row):
        conversation = request(row, index)
        before, through = chat.template.assistant_turn(chat.template.prepare(request(row, index + 1)), index)
        if chat.template.prompt(conversation) != before:
            conversation = request(row, index, thinking=True)
        uris = [part.image for m in conversation.messages for part in image_parts(m)]
        prompt = chat.prompt(conversation, history, {uri: vision.shown(uri) for uri in map(str, uris)}).ids
        sampled = chat.template.encode(through[len(before) : through.rindex(EOS) + len(EOS)])
        chat.remember(history, conversation, request(row, index + 1).messages[index], prompt, sampled)
        turns.append((prompt, prompt + sampled))
    return turns


def turns_of_trainer(line: bytes, vision: Vision) -> list[Turn]:
    tokenizer = sft_dataset.load_tokenizer(vision.folder)
    rows = [msgspec.json.decode(line, type=TrainingRow)]
    sequences = sft_dataset.encode_rows(rows, tokenizer, sequence_length=4000, images=vision.images).sequences
    turns: list[Turn] = []
    for start, end in itertools.pairwise(sequences.cu_seqlens.tolist()):
        ids, weights = sequences.tokens[start:end].tolist(), sequences.weights[start:end].tolist()
        firsts = [i for i in range(1, len(ids)) if weights[i] and not weights[i - 1]]
        lasts = [i for i in range(len(ids)) if weights[i] and not any(weights[i + 1 : i + 2])]
        turns += [(ids[:first], ids[: last + 1]) for first, last in zip(firsts, lasts, strict=True)]
    return turns


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_with_images_has_the_same_ids_everywhere(name: str, vision: Vision):
    line = vision.stored(CONVERSATIONS[name])
    trained = turns_of_trainer(line, vision)
    assert len(trained) == len(replies_of(CONVERSATIONS[name]))
    assert turns_of_inference(line, vision) == trained, "inference and trainer differ"
    assert turns_of_files(line, vision) == trained, "files and trainer differ"


def test_what_always_thinks_is_taught_its_thoughts_and_sees_none_of_earlier_turns(tmp_path: Path):
    folder = make_tiny_qwen3_vl(tmp_path / "tiny", thinking=True).path
    tokenizer: Any = load_tokenizer(folder).full
    template = ChatTemplate(tokenizer, sees=True)
    row = talk(show(RED), says("red", reasoning_content="hm"), show(BLUE), says("blue"))
    prepared = template.prepare(msgspec.json.decode(line_of(row), type=TrainingRow).conversation())
    first, with_first = template.assistant_turn(prepared, 1)
    assert first.endswith("<|im_start|>assistant\n<think>\n")
    assert with_first[len(first) :] == "hm\n</think>\n\nred<|im_end|>\n"
    second, with_second = template.assistant_turn(prepared, 3)
    assert "<|im_start|>assistant\nred<|im_end|>" in second
    assert "hm" not in second
    # A row without a thought teaches to have none.
    assert with_second[len(second) :] == "\n</think>\n\nblue<|im_end|>\n"
