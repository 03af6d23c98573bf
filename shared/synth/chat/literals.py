"""The control tokens of a tokenizer where a message merely spells them: replaced before rendering, and put back after.

A control token is one that the tokenizer marks special, and an added one of the form `<|…|>` or `<｜…｜>` that the chat
template writes. The first character of each literal is replaced by a private-use character that stands for it, so the
text holds the literal no more, whatever a template puts around it. That is why `|im_end|` counts as a literal too:
Qwen3-Coder's template writes the keys of a tool's schema between `<` and `>`. A template that deletes text from the
middle of a message could still put a token together; no known one does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, cast

from synth.chat.json_text import MAX_NESTING
from synth.chat.marks import MARKS
from synth.errors import Problem, UserError

#: Stands in front of a private-use character that a message holds itself; the stand-ins follow it.
_ESCAPE = 0xF0000
#: Forms of tokens that one pattern finds, however many tokens there are.
_BRACKETS = (("<", ">"), ("[", "]"), ("|", "|"), ("｜", "｜"))
_UNMARKED_CONTROL = re.compile(r"<[|｜].+[|｜]>")


def control_tokens(tokenizer: Any) -> set[str]:
    """The texts of a Hugging Face tokenizer's control tokens, the marks (`marks.MARKS`) left out."""
    added = [(token.content, token.special) for token in tokenizer.added_tokens_decoder.values()]
    return control_texts(added, tokenizer.all_special_tokens, str(tokenizer.chat_template))


def control_texts(added: Iterable[tuple[str, bool]], special: Iterable[str], template: str) -> set[str]:
    """Return the control tokens of a tokenizer, the marks left out.

    added: each added token, and whether it is marked special. special: further special tokens.
    """
    controls = {text for text, marked in added if marked or (_UNMARKED_CONTROL.fullmatch(text) and text in template)}
    # An unset bos or pad token may be "".
    return (controls | set(special)) - set(MARKS) - {""}


class Literals:
    """Replaces the control tokens that are spelled in texts, and restores them."""

    def __init__(self, tokens: Collection[str]) -> None:
        cores = {token[1:-1] for token in tokens if _UNMARKED_CONTROL.fullmatch(token)}
        self._tokens = frozenset(tokens)
        self._spelled = frozenset({*tokens, *cores})
        first = sorted({literal[0] for literal in self._spelled})
        self._stand_ins = {character: chr(_ESCAPE + 1 + k) for k, character in enumerate(first)}
        self._characters = {stand_in: character for character, stand_in in self._stand_ins.items()}
        private = f"[{chr(_ESCAPE)}-{chr(_ESCAPE + len(first))}]"
        self._private = re.compile(private)
        self._escaped = re.compile(f"{chr(_ESCAPE)}(.)|{private}", re.DOTALL)
        self._found = re.compile("|".join([private, *_patterns(self._spelled)]))
        self._token = re.compile("|".join(_patterns(self._tokens)) or r"(?!)")

    def escape(self, value: Any, depth: int = 0) -> Any:
        """The value with every text in it, keys too, free of literals.

        Raises `UserError` for more than `MAX_NESTING` levels of lists and objects.
        """
        if isinstance(value, str):
            return self._found.sub(self._replace, value)
        if not isinstance(value, list | dict):
            return value
        if depth > MAX_NESTING:
            raise UserError(
                Problem(
                    what="a message is nested too deeply", expected=f"at most {MAX_NESTING} levels", where="messages"
                )
            )
        if isinstance(value, list):
            items: list[Any] = []
            for item in cast(list[Any], value):
                items.append(self.escape(item, depth + 1))
            return items
        entries: dict[str, Any] = {}
        for key, item in cast(dict[str, Any], value).items():
            entries[self._found.sub(self._replace, key)] = self.escape(item, depth + 1)
        return entries

    def restore(self, rendered: str) -> str:
        """The text with its literals."""
        return self._escaped.sub(lambda found: found[1] or self._characters.get(found[0], found[0]), rendered)

    def occur_in(self, rendered: str) -> bool:
        """Whether the text holds a literal, or a private-use character that had to be escaped."""
        return self._private.search(rendered) is not None

    def split(self, rendered: str) -> Iterator[str]:
        """The template's own control tokens, and the texts between them, in order."""
        end = 0
        for found in self._token.finditer(rendered):
            token = _whole(found)
            if token in self._tokens and found.start() >= end:
                yield rendered[end : found.start()]
                yield token
                end = found.start() + len(token)
        yield rendered[end:]

    def _replace(self, found: re.Match[str]) -> str:
        character = found[0]
        if self._private.fullmatch(character):
            return chr(_ESCAPE) + character
        return self._stand_ins[character] if _whole(found) in self._spelled else character


def _whole(found: re.Match[str]) -> str:
    """The literal that begins at a match; what a bracket pattern has found may be none."""
    return found[0] + (found[found.lastindex] if found.lastindex else "")


def _patterns(literals: Collection[str]) -> list[str]:
    """Patterns that match the first character of a literal, with the rest of it as a group.

    Tokens in brackets share a pattern for each kind of bracket, since some tokenizers have a thousand of them.
    """
    left, patterns = set(literals), list[str]()
    for opening, closing in _BRACKETS:
        a, z = re.escape(opening), re.escape(closing)
        form = re.compile(f"{a}[^{a}{z}]+{z}", re.DOTALL)
        inside = {literal for literal in left if form.fullmatch(literal)}
        if inside:
            longest = max(map(len, inside)) - 2
            patterns.append(f"{a}(?=([^{a}{z}]{{1,{longest}}}{z}))")
            left -= inside
    for literal in sorted(left, key=lambda literal: (-len(literal), literal)):
        patterns.append(f"{re.escape(literal[0])}(?=({re.escape(literal[1:])}))")
    return patterns
