"""The images of a prompt: each by its blob, with the patches that it becomes, in the order of their tokens.

A prompt's token ids hold an image as a run of the model's image token, one for each merged patch. The ids alone do not
say which image it is, so whoever compares two prompts compares their images too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from synth.errors import Problem, UserError


class PromptImage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An image that a prompt shows.

    sha256: of its file. size: bytes of it. uri: its blob. height, width: its patches, before they are merged.
    tokens: how many image tokens stand for it.
    """

    sha256: str
    size: int
    uri: str
    height: int
    width: int
    tokens: int


def expand_image_tokens(ids: Sequence[int], images: Sequence[PromptImage], image_token: int) -> list[int]:
    """The ids with as many image tokens for each image as it has; a chat template writes one for each.

    Raises `UserError` where the images are not as many as the tokens: the template shows fewer, or text spells one.
    """
    found = ids.count(image_token)
    if found != len(images):
        raise UserError(
            Problem(
                what=f"the chat template shows {found} images, and the messages have {len(images)}",
                expected="a template that shows every image, wherever it stands",
                fix="put images into messages of the user",
                where="messages",
            )
        )
    expanded: list[int] = []
    rest = iter(images)
    for token in ids:
        expanded += [token] * next(rest).tokens if token == image_token else [token]
    return expanded
