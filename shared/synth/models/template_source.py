"""Read the inputs of rendering from a model's folder, without the library of its tokenizer."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from synth.chat.literals import control_texts
from synth.chat.template_source import DEFAULT, TemplateSource

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_T = TypeVar("_T")


class _Added(msgspec.Struct):
    content: str
    special: bool = False


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_Added] = []


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


_Token = str | _Added | None


class _TokenizerConfig(msgspec.Struct):
    """The parts of `tokenizer_config.json`, `special_tokens_map.json` and `chat_template.json` that rendering reads."""

    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: _Token = None
    eos_token: _Token = None
    unk_token: _Token = None
    sep_token: _Token = None
    pad_token: _Token = None
    cls_token: _Token = None
    mask_token: _Token = None
    added_tokens_decoder: dict[str, _Added] = {}
    additional_special_tokens: list[str | _Added] | None = None
    extra_special_tokens: Any = None


def read_template_source(folder: Path) -> TemplateSource:
    """Read the templates and control tokens of a model's folder. Files that are absent or broken have none."""
    config = _read(folder / "tokenizer_config.json", _TokenizerConfig)
    tokens: dict[str, str] = {}
    special: set[str] = set()
    for part in (_read(folder / "special_tokens_map.json", _TokenizerConfig), config):
        for role in _ROLES:
            if (token := _text(getattr(part, role))) is not None:
                tokens[role] = token
        special |= {text for token in part.additional_special_tokens or () if (text := _text(token)) is not None}
        special |= _texts(part.extra_special_tokens)
    templates = read_templates(folder)
    added = [*_read(folder / "tokenizer.json", _TokenizerFile).added_tokens, *config.added_tokens_decoder.values()]
    controls = control_texts(
        [(token.content, token.special) for token in added],
        {*special, *tokens.values()},
        "\n".join(templates.values()),
    )
    return TemplateSource(templates, tokens, sorted(controls))


def read_templates(folder: Path) -> dict[str, str]:
    """Read the chat templates of a folder by name, from any of the files in which models have them."""
    with contextlib.suppress(OSError):
        return {DEFAULT: (folder / "chat_template.jinja").read_text(errors="replace")}
    for name in ("chat_template.json", "tokenizer_config.json"):
        part = _read(folder / name, _TokenizerConfig)
        if isinstance(part.chat_template, list):
            return {entry.name: entry.template for entry in part.chat_template}
        if part.chat_template:
            return {DEFAULT: part.chat_template}
    return {}


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return kind()


def _text(token: _Token) -> str | None:
    return token.content if isinstance(token, _Added) else token


def _texts(tokens: Any) -> set[str]:
    """Return the texts of extra special tokens, a list or an object of them."""
    if isinstance(tokens, dict):
        values = list(cast(dict[str, Any], tokens).values())
    else:
        values = cast(list[Any], tokens) if isinstance(tokens, list) else []
    return {
        str(cast(dict[str, Any], token).get("content")) if isinstance(token, dict) else str(token) for token in values
    }
