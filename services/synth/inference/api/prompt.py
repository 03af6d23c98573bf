"""Build the prompt of a chat request: its images, and its messages rendered and tokenised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synth.chat.messages import ContentPart, Conversation, Message
from synth.chat.template import TooManyTokens
from synth.inference.api.images import ChatImages, ShownImages
from synth.inference.api.limits import VALUES_SETTING, RequestLimits
from synth.inference.api.requests import ChatRequest, JobSampling, build_sampling_params
from synth.inference.chat.prompts import ChatFormat, Prompt, TokenHistory
from synth.inference.engines.limits import ContextOverflow
from synth.inference.engines.protocol import Engine
from synth.inference.recording.recorder import ChoiceRecording
from synth.runtime.json_bodies import check_json_values
from synth.runtime.off_loop import INLINE_BYTES, OffLoop


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """The engine and settings of one call. model: its name in the reply. org: the owner; its images are its own.
    sampling: the job's, for a rollout's call."""

    engine: Engine
    chat: ChatFormat
    model: str
    org: str
    sampling: JobSampling | None = None


async def show_images(
    request: ChatRequest,
    binding: ModelBinding,
    recordings: Sequence[ChoiceRecording],
    images: ChatImages,
    *,
    seconds: float,
) -> ShownImages:
    """Return the request's messages with their images. A text model is shown none: its template refuses them."""
    job = binding.sampling
    most = images.per_message if job is None or job.max_images_per_message is None else job.max_images_per_message
    if binding.chat.processor is None:
        return ShownImages(request.messages)
    return await images.show(
        request.messages,
        binding.chat.processor,
        org=binding.org,
        most=most,
        in_prompt=job.max_images_per_prompt if job is not None else None,
        context=binding.engine.max_context,
        seconds=seconds,
        history=recordings[0].history if recordings else None,
    )


async def check_argument_texts(
    messages: Sequence[Message], off_loop: OffLoop, *, limits: RequestLimits, org: str
) -> None:
    """Refuse a call whose arguments are a text with too much JSON in it: the template takes them as an object.

    Raises what `check_json_values` raises.
    """
    for message in messages:
        parts = message.content if isinstance(message.content, list) else ()
        texts = [call.called.arguments for call in message.tool_calls or ()]
        texts += [part.arguments for part in parts if isinstance(part, ContentPart)]
        for text in texts:
            if isinstance(text, str) and len(text) > INLINE_BYTES:
                await check_json_values(text.encode(), off_loop, limit=limits.values, setting=VALUES_SETTING, org=org)


def default_max_tokens(binding: ModelBinding, limits: RequestLimits) -> int:
    """Return the longest reply to a request that names no limit."""
    return limits.default_max_tokens or binding.engine.max_context


def build_prompt(
    request: ChatRequest,
    binding: ModelBinding,
    conversation: Conversation,
    history: TokenHistory | None,
    shown: ShownImages,
    limits: RequestLimits,
) -> Prompt:
    """Render and tokenise.

    Raises `ContextOverflow` for a prompt whose text alone has too many tokens, and `UserError` for one with too many
    characters.
    """
    context = binding.engine.max_context
    try:
        return binding.chat.prompt(
            conversation, history, shown.images, most=context - 1, most_characters=limits.characters
        )
    except TooManyTokens as error:
        default = default_max_tokens(binding, limits)
        completion = build_sampling_params(request, binding.sampling, default_max_tokens=default).max_tokens
        # The text has one token for each image.
        image_tokens = sum(image.shown.tokens for image in shown.images.values())
        raise ContextOverflow(
            prompt=error.tokens + image_tokens - len(shown.images),
            completion=completion,
            context=context,
            image_tokens=image_tokens,
            exact=error.exact and not image_tokens,
        ) from error
