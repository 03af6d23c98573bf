"""Rows with images become tokens, each image as many as it has."""

from __future__ import annotations

import itertools
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_file, encode_rows, load_tokenizer
from synth.trainer.learner.data.sft_images import SftImages
from tests.unit.trainer.sft_rows import token_cache, training_rows, write_rows
from tests.unit.trainer.vision import noise, question, store_image


@pytest.fixture(scope="module")
def tokenizer(vision_dir: Path) -> Any:
    return load_tokenizer(vision_dir)


@pytest.fixture(scope="module")
def uris(loader: ImageLoader) -> list[str]:
    """Images of 4, 3, 4 and 1 tokens."""
    sizes = ((64, 64), (96, 32), (32, 128), (32, 32))
    return [store_image(loader.folder, noise(900 + k, size)) for k, size in enumerate(sizes)]


def encode(tokenizer: Any, loader: ImageLoader, *rows: dict[str, Any], length: int = 512, most: int = 9) -> SftDataset:
    images = SftImages(loader, most)
    return encode_rows(training_rows(list(rows)), tokenizer, sequence_length=length, images=images)


def runs(tokens: Any, image_token: int) -> list[int]:
    """The lengths of the runs of image tokens."""
    is_image = np.concatenate([[0], tokens == image_token, [0]]).astype(int)
    edges = np.flatnonzero(np.diff(is_image))
    return (edges[1::2] - edges[::2]).tolist()


def test_each_image_is_a_run_of_as_many_tokens_as_it_has(tokenizer: Any, loader: ImageLoader, uris: list[str]) -> None:
    row = question("What is it?", *uris, answer="noise")
    row["messages"] += [
        {"role": "user", "content": [{"type": "text", "text": "And this"}, {"type": "image", "image": uris[1]}]},
        {"role": "assistant", "content": "more noise"},
    ]
    text = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}
    sequences = encode(tokenizer, loader, row, text).sequences
    first, second = (sequences.tokens[a:b] for a, b in itertools.pairwise(sequences.cu_seqlens))
    assert runs(first, loader.image_token) == [4, 3, 4, 1, 3]
    assert [image.uri for image in sequences.images[0]] == [*uris, uris[1]]
    assert runs(second, loader.image_token) == []
    assert sequences.images[1] == ()
    trained = sequences.tokens[sequences.weights > 0].tolist()
    assert tokenizer.decode(trained) == "noise<|im_end|>more noise<|im_end|>Hi<|im_end|>"
    assert sequences.banned == loader.banned


def test_a_message_keeps_its_first_images_and_the_rest_is_counted(
    tokenizer: Any, loader: ImageLoader, uris: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    row = question("What is it?", *uris, answer="noise")
    with caplog.at_level(logging.DEBUG, logger="synth"):
        data = encode(tokenizer, loader, row, question("And?", uris[3], answer="noise"), most=2)
    assert [[image.uri for image in shown] for shown in data.sequences.images] == [uris[:2], [uris[3]]]
    assert data.counts["images_trimmed"] == 2
    assert "row 1: 2 images" in caplog.text


def test_a_sequence_is_never_cut_inside_an_image(tokenizer: Any, loader: ImageLoader, uris: list[str]) -> None:
    row = question("Hello", answer="Hi")
    row["messages"] += question("What is it?", uris[3], uris[0], answer="noise")["messages"]
    whole = encode(tokenizer, loader, row)
    assert whole.counts["images_truncated"] == 0
    tokens = whole.sequences.tokens
    start = int(np.flatnonzero(tokens == loader.image_token)[1])  # of the second image
    for length in range(start, start + 4):
        cut = encode(tokenizer, loader, row, length=length)
        assert cut.sequences.tokens.tolist() == tokens[:start].tolist()
        assert [image.uri for image in cut.sequences.images[0]] == [uris[3]]
        counts = (cut.counts["images_truncated"], cut.counts["truncated_rows"], cut.counts["truncated_tokens"])
        assert counts == (1, 1, len(tokens) - start)
    fitting = encode(tokenizer, loader, row, length=start + 4)
    assert fitting.sequences.tokens.tolist() == tokens[: start + 4].tolist()
    assert len(fitting.sequences.images[0]) == 2


def test_a_spelled_image_token_is_text(tokenizer: Any, loader: ImageLoader, uris: list[str]) -> None:
    row = question("Is this <|image_pad|> an image?", uris[0], answer="no <|image_pad|>")
    sequences = encode(tokenizer, loader, row).sequences
    assert runs(sequences.tokens, loader.image_token) == [4]
    assert "<|image_pad|> an image" in tokenizer.decode(sequences.tokens[sequences.weights == 0])


@pytest.mark.parametrize(
    ("row", "code", "why"),
    [
        (question("What?", "https://example.com/a.png", answer="a"), "bad_dataset", "row 1: .*example.com/a.png"),
        (question("What?", f"blob://orgs/org_a/images/{'0' * 64}", answer="a"), "bad_image", "0" * 64),
        (
            {"messages": [{"role": "system", "content": [{"type": "image", "image": "x"}]}]}
            | {"messages": [{"role": "assistant", "content": [{"type": "image", "image": "x"}]}]},
            "bad_dataset",
            "assistant",
        ),
    ],
)
def test_an_image_that_cannot_be_shown_is_refused(
    row: dict[str, Any], code: str, why: str, tokenizer: Any, loader: ImageLoader
) -> None:
    with pytest.raises(TrainingFailed, match=why) as failed:
        encode(tokenizer, loader, row)
    assert failed.value.code == code


def test_an_image_whose_file_was_changed_is_refused(vision_dir: Path, loader: ImageLoader, tmp_path: Path) -> None:
    uri = store_image(tmp_path, noise(1))
    (tmp_path / uri.rpartition("/")[2]).write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(TrainingFailed, match="sha256"):
        ImageLoader.load(vision_dir, tmp_path).describe(uri)


def test_the_cache_of_another_limit_or_processor_is_not_read(
    tokenizer: Any, vision_dir: Path, loader: ImageLoader, uris: list[str], tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "d.jsonl", [question("What?", *uris, answer="noise")])
    folder = tmp_path / "c"

    def shown(images: SftImages) -> list[str]:
        found = encode_file(DatasetFile(path), tokenizer, sequence_length=512, images=images, cache=token_cache(folder))
        return [image.uri for image in found.sequences.select([0]).images[0]]

    def made() -> set[str]:
        return {file.parent.name for file in folder.glob("*/*.tokens")}

    assert shown(SftImages(loader, 1)) == uris[:1]
    first = made()
    assert shown(SftImages(loader, 1)) == uris[:1]
    assert made() == first
    assert shown(SftImages(loader, 2)) == uris[:2]
    other = tmp_path / "other"
    shutil.copytree(vision_dir, other)
    settings = (other / "preprocessor_config.json").read_text().replace("0.5", "0.4")
    (other / "preprocessor_config.json").write_text(settings)
    second = made()
    assert len(second) == 2
    assert shown(SftImages(ImageLoader.load(other, loader.folder), 2)) == uris[:2]
    assert len(made()) == 3


def test_pixels_are_kept_up_to_a_bound(vision_dir: Path, loader: ImageLoader, uris: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(loader.folder, folder)
    size = 16 * 1536 * 4  # of the first
    images = [loader.describe(uri) for uri in uris]
    for bound, kept in ((size, False), (10 * size, True)):
        bounded = ImageLoader(folder, loader._processor, _config(vision_dir), cache_bytes=bound)
        expected = [bounded.patches([image], "cpu") for image in images]
        for file in folder.iterdir():
            file.rename(file.with_suffix(".gone"))
        assert bounded.patches([images[-1]], "cpu").pixels_PX.equal(expected[-1].pixels_PX)  # type: ignore[union-attr]
        if kept:
            assert bounded.patches([images[0]], "cpu").pixels_PX.equal(expected[0].pixels_PX)  # type: ignore[union-attr]
        else:
            with pytest.raises(TrainingFailed, match=images[0].sha256):
                bounded.patches([images[0]], "cpu")
        for file in folder.iterdir():
            file.rename(file.with_suffix(""))


def _config(vision_dir: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(vision_dir)
