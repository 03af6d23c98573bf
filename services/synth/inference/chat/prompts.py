"""Turn the conversation of a chat request into prompt ids, token-exact across the turns of one rollout.

Rendering a conversation again and encoding it may give other ids than the sampled ones: a text does not determine its
tokens. So the token ids of a rollout's calls are kept, and a request that continues one of these calls gets the
recorded ids, and only its new part from the template. An image is a run of image tokens, and the messages name it by
its content.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from synth.chat.families import Family
from synth.chat.messages import Conversation, Message, image_address, image_parts, template_messages, text_length
from synth.chat.replies.reader import Opening
from synth.chat.template import ChatTemplate, TooManyTokens
from synth.errors import Permanent, UserError
from synth.images.processor import ImageProcessor
from synth.images.prompt_image import PromptImage, expand_image_tokens
from synth.inference.engines.protocol import EngineImage
from synth.inference.grammar.compiler import GrammarCompiler
from synth.inference.token_length import most_characters_per_token
from synth.inference.tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of a reply. images: the images that it shows, in the order of their tokens."""

    ids: list[int]
    images: tuple[EngineImage, ...] = ()

    @property
    def image_tokens(self) -> int:
        """How many of the ids are of images."""
        return sum(image.shown.tokens for image in self.images)


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """One call that was answered. ids: its prompt's and its reply's. reasoning: of the reply, before its content."""

    ids: list[int]
    reasoning: str


@dataclass(slots=True)
class TokenHistory:
    """The calls of one rollout, by the conversation that each of them made: what to continue from.

    images: the image that was read from each address, by its digest: later calls show the same again.
    branch_breaks: calls that could not continue an earlier one, although there was one.
    """

    calls: dict[tuple[str, ...], RecordedTokens] = field(default_factory=dict[tuple[str, ...], RecordedTokens])
    images: dict[bytes, PromptImage] = field(default_factory=dict[bytes, PromptImage])
    branch_breaks: int = 0


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A model's chat template and tokenizer, and the JSON schemas that were compiled for it.

    processor: of a model that sees images. media: the tokens that stand for media in its prompts, never in a reply.
    characters_per_token: the most characters of text that a token stands for; None if it is not known.
    """

    tokenizer: Tokenizer
    processor: ImageProcessor | None = None
    media: tuple[int, ...] = ()

    template: ChatTemplate = field(init=False)
    characters_per_token: float | None = field(init=False)
    grammars: GrammarCompiler = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", ChatTemplate(self.tokenizer.full, sees=self.processor is not None))
        per_token = most_characters_per_token(self.tokenizer.full.backend_tokenizer)
        object.__setattr__(self, "characters_per_token", per_token)
        object.__setattr__(self, "grammars", GrammarCompiler(self.tokenizer.full))

    @classmethod
    def load(cls, model_dir: Path) -> ChatFormat:
        """Load the chat format of a model's folder. Raises `Permanent` if the folder lacks a file that a chat needs."""
        from transformers import AutoConfig

        from synth.images.qwen3_vl import MODEL_TYPES, media_tokens

        tokenizer = load_tokenizer(model_dir)
        try:
            config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        except (OSError, ValueError) as error:
            raise Permanent(f"no model can be loaded from {model_dir.name!r}: {error}") from error
        if config.model_type not in MODEL_TYPES:
            return cls(tokenizer)
        return cls(tokenizer, ImageProcessor.load(model_dir), media_tokens(config))

    @property
    def family(self) -> Family:
        """How this model writes reasoning and tool calls."""
        return self.template.family

    def prompt(
        self,
        conversation: Conversation,
        history: TokenHistory | None = None,
        images: Mapping[str, EngineImage] | None = None,
        *,
        most: int | None = None,
        most_characters: int | None = None,
    ) -> Prompt:
        """Return the prompt to sample after. With a `history`, a continued call's own ids come first, untouched.

        images: the images that the messages show, by the addresses in them. most: tokens of text that a prompt may
        have. most_characters: characters of the texts of the messages and tools. Raises `UserError` for messages that
        the template cannot render or that have more characters, and `TooManyTokens` for more than `most`.
        """
        if most_characters is not None:
            self._check_characters(conversation, most_characters, most)
        shown = _images_of(conversation.messages, images)
        if history is None or not history.calls:
            return Prompt(self._encode(self.template.prompt(conversation), shown, most), shown)
        keys = self._key(conversation, conversation.messages)
        lengths = {len(key) for key in history.calls}
        calls = [history.calls.get(keys[: n + 1]) if n + 1 in lengths else None for n in range(1, len(keys))]
        # Most clients send an assistant's message back without its reasoning. It is the template that decides what of
        # it the model sees again, so the template gets it.
        messages = [
            msgspec.structs.replace(message, reasoning_content=tokens.reasoning)
            if tokens is not None and not message.reasoning_text
            else message
            for message, tokens in zip(conversation.messages, calls, strict=True)
        ]
        continued, text = self._continue(replace(conversation, messages=messages), calls, images, most)
        if continued is None:
            history.branch_breaks += 1
            continued = self._encode(text, shown, most)
        return Prompt(continued, shown)

    def _check_characters(self, conversation: Conversation, most_characters: int, most: int | None) -> None:
        """Refuse texts that are too long to render.

        Each step of a template copies them, and no other thread runs during a copy.
        """
        characters = text_length(conversation)
        if characters <= most_characters:
            return
        if most is not None and self.characters_per_token is not None:
            least = math.ceil(characters / self.characters_per_token)
            if least > most:
                raise TooManyTokens(least, exact=False)
        raise UserError(
            f"the texts of the messages and tools have {characters:,} characters",
            expected=f"at most {most_characters:,} (SYNTH_MAX_PROMPT_CHARACTERS)",
            fix="shorten the messages, or have the operator raise it",
            where="messages",
        )

    def opening(self, prompt_ids: Sequence[int]) -> Opening:
        """Return how the reply to a prompt begins: inside its reasoning if the prompt ends in open reasoning."""
        return self.family.reader.opening(self.tokenizer.decode(prompt_ids[-16:]))

    def remember(
        self,
        history: TokenHistory,
        conversation: Conversation,
        reply: Message,
        prompt_ids: list[int],
        sampled_ids: list[int],
    ) -> None:
        """Keep a call's ids for the request that will continue it, be it with the reply's reasoning or without."""
        tokens = RecordedTokens([*prompt_ids, *sampled_ids], reply.reasoning_text)
        bare = msgspec.structs.replace(reply, reasoning_content=None, reasoning=None)
        for message in (reply, bare) if reply.reasoning_text else (reply,):
            history.calls[self._key(conversation, [*conversation.messages, message])] = tokens

    def _continue(
        self,
        conversation: Conversation,
        calls: Sequence[RecordedTokens | None],
        images: Mapping[str, EngineImage] | None,
        most: int | None,
    ) -> tuple[list[int] | None, str]:
        """Return recorded and new ids, or None if no call can be continued; and the whole rendered text."""
        template, prepared = self.template, self.template.prepare(conversation)
        text = template.render(prepared, thinking=conversation.thinking, add_generation_prompt=True)
        n = max((n for n, tokens in enumerate(calls[:-1], start=1) if tokens is not None), default=0)
        recorded = calls[n - 1]
        if n == 0 or recorded is None:
            return None, text
        before = template.render(prepared, thinking=conversation.thinking, add_generation_prompt=False, upto=n)
        # A template may show an earlier turn otherwise once another follows (Qwen3 drops its reasoning).
        end = before.rfind(self.tokenizer.turn_end_text)
        if end < 0 or not text.startswith(before):
            return None, text
        # The recorded ids end with the reply: with the token that ends a turn if it was sampled, else before it.
        ended = recorded.ids[-1] == self.tokenizer.turn_end
        new = text[end + len(self.tokenizer.turn_end_text) * ended :]
        return recorded.ids + self._encode(new, _images_of(conversation.messages[n:], images), most), text

    def _encode(self, rendered: str, images: Sequence[EngineImage], most: int | None) -> list[int]:
        """Return the token ids of rendered text that shows these images."""
        ids = self.template.encode(rendered, most=most, characters_per_token=self.characters_per_token)
        if self.processor is None:
            return ids
        return expand_image_tokens(ids, [image.shown for image in images], self.template.image_token)

    def _key(self, conversation: Conversation, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return a key that is equal for equal input of the template: one string for the settings, one a message."""
        settings = json.dumps([conversation.tools, conversation.thinking], sort_keys=True)
        shown = template_messages(messages, thinks=False, sees=self.template.sees)
        reasoning = [message.reasoning_text for message in messages]
        return (settings, *map(_message_key, shown, reasoning))


def _images_of(messages: Sequence[Message], images: Mapping[str, EngineImage] | None) -> tuple[EngineImage, ...]:
    """Return the images that these messages show, in order."""
    if not images:
        return ()
    return tuple(images[image_address(part)] for message in messages for part in image_parts(message))


def _message_key(entry: dict[str, Any], reasoning: str) -> str:
    """Return one message in the template's form. A tool call's id is the client's to choose, and does not count."""
    calls = [call["function"] for call in entry.get("tool_calls", ())]
    return json.dumps([entry | {"tool_calls": calls}, reasoning], sort_keys=True)
