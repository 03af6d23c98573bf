"""A downloaded adapter names its base as peft loads it on this machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from synth.cli.transfer.download import download_model, locate_base
from synth.console.errors import CliError
from tests.unit.cli.backend import Answer, Request, backend_that

BASES = {
    "peft:hub": "Qwen/Qwen3-0.6B",
    "peft:here": "tiny",
    "peft:job": "fft:acme/tiny:job_1",
    "peft:older": None,
    "peft:hostile": "../../secrets",
}
FILES: dict[str, dict[str, Any]] = {
    **{name: {"adapter_config.json": {"r": 8, "base_model_name_or_path": base}} for name, base in BASES.items()},
    **{name: {"config.json": {}} for name in ("Qwen/Qwen3-0.6B", "tiny", "fft:acme/tiny:job_1")},
    "peft:stacked": {"adapter_config.json": {"base_model_name_or_path": "peft:here"}},
}


def answer(request: Request) -> Answer:
    url = urlsplit(request.path)
    asked = {key: values[0] for key, values in parse_qs(url.query).items()}
    bodies = {name: json.dumps(body).encode() for name, body in FILES[asked["model"]].items()}
    if url.path.endswith("/content"):
        return Answer(body=bodies[asked["name"]])
    digests = {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}
    files = [{"name": name, "size": len(body), "sha256": digests[name]} for name, body in bodies.items()]
    return Answer(body={"data": files, "next": None})


def named_base(tmp_path: Path, model: str, *, download: bool) -> str | None:
    """The base that the adapter names after it was downloaded twice, relative to the folder of the test if inside."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    target = tmp_path / "adapter"
    with backend_that(answer) as (_, client):
        for _ in range(2):
            download_model(client, model, target)
            locate_base(client, target, tmp_path / "models", download=download)
    config = json.loads((target / "adapter_config.json").read_bytes())
    assert config.get("r") == 8
    base = config["base_model_name_or_path"]
    assert base is None or not base.startswith("/") or (Path(base) / "config.json").exists() or not download
    return base and base.removeprefix(f"{tmp_path.resolve()}/")


@pytest.mark.parametrize(
    ("model", "download", "base"),
    [
        ("peft:hub", False, "Qwen/Qwen3-0.6B"),
        ("peft:hub", True, "adapter/base"),
        ("peft:here", False, "models/tiny"),
        ("peft:here", True, "adapter/base"),
        ("peft:job", False, "fft:acme/tiny:job_1"),
        ("peft:job", True, "adapter/base"),
        ("peft:older", True, None),
    ],
)
def test_an_adapter_names_its_base(tmp_path: Path, model: str, download: bool, base: str | None):
    assert named_base(tmp_path, model, download=download) == base


@pytest.mark.parametrize(("model", "problem"), [("peft:stacked", "is an adapter itself"), ("peft:hostile", "no name")])
def test_a_base_that_cannot_be_loaded_is_an_error(tmp_path: Path, model: str, problem: str):
    with pytest.raises(CliError, match=problem):
        named_base(tmp_path, model, download=model == "peft:stacked")
