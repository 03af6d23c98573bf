"""The route of images that models received, by the digests in transcripts and trajectories."""

from __future__ import annotations

import re

from fastapi import APIRouter
from starlette.responses import Response

from synth.blobs import BlobMissing
from synth.errors import Problem
from synth.events import BlobRef
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError
from synth.images.format import read_image_format

router = APIRouter(prefix="/api/images", tags=["images"])

_DIGEST = re.compile(r"[0-9a-f]{64}", re.A)


@router.get(
    "/{sha256}",
    summary="An image that a model was shown",
    response_class=Response,
    responses={200: {"content": {"image/*": {}}, "description": "The file, as it was sent"}},
)
async def get_image(sha256: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return the file of an image of a rollout, an evaluation or a dataset of this organisation. It never changes."""
    if not _DIGEST.fullmatch(sha256):
        raise _no_image(sha256)
    # The size is unknown. The digest in the name identifies the content.
    ref = BlobRef(uri=f"blob://orgs/{caller.org}/images/{sha256}", size=0, sha256=sha256)
    try:
        body = await gateway.blobs.get_bytes(ref)
    except BlobMissing as error:
        raise _no_image(sha256) from error
    headers = {"Cache-Control": "private, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type=f"image/{read_image_format(body).kind}", headers=headers)


def _no_image(sha256: str) -> ApiError:
    problem = Problem(
        what=f"there is no image {sha256[:64]!r}",
        expected="the sha256 of an image, as `rollouts show -o json` has it",
        where="sha256",
    )
    return ApiError(404, problem.text(), param="sha256", problems=[problem])
