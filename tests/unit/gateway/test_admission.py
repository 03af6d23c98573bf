"""An organisation has its limits of requests, streams and uploads at a gateway, and no part of another's."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from synth.gateway.errors import ApiError
from synth.gateway.limits.admission import Admission
from synth.gateway.limits.settings import LimitSettings


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_requests_beyond_the_burst_wait_until_the_rate_allows_one() -> None:
    clock = Clock()
    admission = Admission(LimitSettings(org_request_burst=3, org_requests_per_s=0.5), now=clock)
    for _ in range(3):
        admission.admit("a")
    with pytest.raises(ApiError, match="SYNTH_ORG_REQUEST_BURST") as refused:
        admission.admit("a")
    assert (refused.value.status, refused.value.retry_after) == (429, 2)
    admission.admit("b")
    clock.seconds = 2.0
    admission.admit("a")
    with pytest.raises(ApiError):
        admission.admit("a")


@pytest.mark.parametrize("kind", ["streams", "uploads"])
def test_a_place_is_free_again_when_its_request_has_ended(kind: str) -> None:
    admission = Admission(LimitSettings(org_streams=2, org_uploads=2))
    take = admission.stream if kind == "streams" else admission.upload
    with ExitStack() as taken:
        for _ in range(2):
            taken.enter_context(take("a"))
        assert admission.used("a")[kind] == 2
        with pytest.raises(ApiError, match=f"SYNTH_ORG_{kind.upper()}"), take("a"):
            pass
        with take("b"):
            pass
    with take("a"):
        assert admission.used("a")[kind] == 1
