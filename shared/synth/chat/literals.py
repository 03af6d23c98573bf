"""Replace the control tokens that a message spells as text before rendering, and put them back afterwards.

A control token is one that the tokenizer marks special, and an added one of the form `<|…|>` or `<｜…｜>` that the chat
template writes. The first character of each literal is replaced by a private-use character that stands for it, so the
text no longer holds the literal, with any text that a template puts around it. That is why `|im_end|` counts as a
literal too: Qwen3-Coder's template writes the keys of a tool's schema between `<` and `>`. A template that deletes text
from the middle of a message could still put a token together; no known one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, cast

from synth.chat.json_text import MAX_NESTING
from synth.chat.marks import MARKS
from synth.errors import UserError

#: Stands in front of a private-use character that a message holds itself; the stand-ins follow it.
_ESCAPE = 0xF0000
#: Forms of tokens that one pattern finds, however many tokens there are.
_BRACKETS = (("<", ">"), ("[", "]"), ("|", "|"), ("｜", "｜"))
_UNMARKED_CONTROL = re.compile(r"<[|｜].+[|｜]>")
#: Characters that one call of a regular expression searches. It holds the GIL until it returns: some milliseconds.
_PIECE = 1 << 18
_JOINED = 1 << 14


def control_tokens(tokenizer: Any) -> set[str]:
    """Return the texts of a Hugging Face tokenizer's control tokens, without the marks (`marks.MARKS`)."""
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
        self._longest = max(map(len, self._spelled), default=1)
        self._escaped = re.compile(f"{chr(_ESCAPE)}(.)|{private}", re.DOTALL)
        self._searched = re.compile("|".join([private, *map(re.escape, first)]))
        self._replaced = [(re.compile(_before_rest(first, self._spelled)), s) for first, s in self._stand_ins.items()]
        self._token = re.compile("|".join(_patterns(self._tokens)) or r"(?!)")

    def escape(self, value: Any, depth: int = 0) -> Any:
        """Return the value with every text in it, keys too, free of literals.

        Raises `UserError` for more than `MAX_NESTING` levels of lists and objects.
        """
        if isinstance(value, str):
            return self._escape_text(value)
        if not isinstance(value, list | dict):
            return value
        if depth > MAX_NESTING:
            raise UserError(
                "a message is nested too deeply", expected=f"at most {MAX_NESTING} levels", where="messages"
            )
        if isinstance(value, list):
            items: list[Any] = []
            for item in cast(list[Any], value):
                items.append(self.escape(item, depth + 1))
            return items
        entries: dict[str, Any] = {}
        for key, item in cast(dict[str, Any], value).items():
            entries[self._escape_text(key)] = self.escape(item, depth + 1)
        return entries

    def _escape_text(self, text: str) -> str:
        if not any(self._searched.search(text, start, start + _PIECE) for start in range(0, len(text), _PIECE)):
            return text
        text = _substitute(self._private, lambda found: chr(_ESCAPE) + found[0], text, 1)
        for pattern, stand_in in self._replaced:
            # A character takes the place of another, so that a piece keeps its length.
            starts = range(0, len(text), _PIECE)
            text = "".join(pattern.sub(stand_in, text[s : s + _PIECE + self._longest])[:_PIECE] for s in starts)
        return text

    def restore(self, rendered: str) -> str:
        """Return the text with its literals."""
        return _substitute(
            self._escaped, lambda found: found[1] or self._characters.get(found[0], found[0]), rendered, 2
        )

    def occur_in(self, rendered: str) -> bool:
        """Return whether the text holds a literal, or a private-use character that had to be escaped."""
        return any(self._private.search(rendered, start, start + _PIECE) for start in range(0, len(rendered), _PIECE))

    @staticmethod
    def least_length(rendered: str) -> int:
        """Return how many characters the text has at least without its escapes."""
        escapes = sum(rendered.count(chr(_ESCAPE), start, start + _PIECE) for start in range(0, len(rendered), _PIECE))
        # Behind an escape stands one character, which may be an escape itself.
        return max(len(rendered) - escapes, (len(rendered) + 1) // 2)

    def split(self, rendered: str) -> Iterator[str]:
        """Yield the template's own control tokens, and the texts between them, in order."""
        end = 0
        for item in find_all(self._token, rendered, self._longest):
            token = _whole(item)
            if token in self._tokens and item.start() >= end:
                yield rendered[end : item.start()]
                yield token
                end = item.start() + len(token)
        yield rendered[end:]


def find_all(pattern: re.Pattern[str], text: str, longest: int) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in a text, piece by piece: other threads can run between the pieces.

    longest: the most characters of a match and its lookahead together. The pattern must have no lookbehind.
    """
    start = 0
    while start < len(text):
        end = start + _PIECE
        for match in pattern.finditer(text, start, end + longest):
            if match.start() >= end:
                break
            yield match
            end = max(end, match.end())
        start = end


def _substitute(pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], text: str, longest: int) -> str:
    if len(text) <= _PIECE:
        return pattern.sub(replace, text)
    joined, pieces, end = list[str](), list[str](), 0
    for match in find_all(pattern, text, longest):
        pieces += text[end : match.start()], replace(match)
        end = match.end()
        # To join a million texts at once would hold the GIL as long as one search.
        if len(pieces) >= _JOINED:
            joined.append("".join(pieces))
            pieces.clear()
    return "".join([*joined, *pieces, text[end:]])


def _whole(match: re.Match[str]) -> str:
    """Return the literal that begins at a match; a match of a bracket pattern may contain none."""
    return match[0] + (match[match.lastindex] if match.lastindex else "")


def _patterns(literals: Collection[str]) -> list[str]:
    """Return patterns that match the first character of a literal, with the rest of it as a group.

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


def _before_rest(first: str, literals: Collection[str]) -> str:
    """A pattern of the first character of those literals that begin with it, if the rest of one follows."""
    return f"{re.escape(first)}(?={_any_of({literal[1:] for literal in literals if literal[0] == first})})"


def _any_of(texts: Collection[str]) -> str:
    """A pattern of the shortest of these texts that stands there. Equal beginnings are compared once."""
    if not texts or "" in texts:
        return ""
    by_first: dict[str, set[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], set()).add(text[1:])
    patterns = [re.escape(first) + _any_of(rest) for first, rest in sorted(by_first.items())]
    return patterns[0] if len(patterns) == 1 else f"(?:{'|'.join(patterns)})"
