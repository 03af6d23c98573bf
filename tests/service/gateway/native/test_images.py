"""Images of an organisation, by their digests."""

from __future__ import annotations

import hashlib

from tests.unit.files.test_image_source import PNG


async def test_an_image_is_read_by_its_digest_and_by_its_organisation_alone(start_gateway, client_of, blobs):
    gateway = await start_gateway()
    mine, other = await client_of(gateway), await client_of(gateway)
    digest = hashlib.sha256(PNG).hexdigest()
    await blobs.put_bytes(f"orgs/{mine.org}/images/{digest}", PNG)
    reply = await mine.http.get(f"/api/images/{digest}")
    assert (reply.status_code, reply.headers["content-type"], reply.content) == (200, "image/png", PNG)
    assert reply.headers["x-content-type-options"] == "nosniff"
    for user, name in ((other, digest), (mine, "0" * 64), (mine, "nothing"), (mine, "%2e%2e%2f" + digest)):
        refused = await user.http.get(f"/api/images/{name}")
        assert refused.status_code == 404, name
    assert "there is no image" in (await other.http.get(f"/api/images/{digest}")).json()["error"]["message"]
