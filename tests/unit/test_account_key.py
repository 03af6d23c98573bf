"""The key that vouches for subscribers: it is a NATS account key, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from synth.bus.server.account_key import AccountKey, read_claims
from synth.errors import UserError


def test_a_seed_gives_one_public_key_and_its_tokens_say_who_issued_them():
    seed = AccountKey.new_seed()
    key = AccountKey(seed)
    assert (len(seed), seed[:2], len(key.public), key.public[0]) == (58, "SA", 56, "A")
    assert AccountKey(seed).public == key.public
    claims = read_claims(key.sign({"sub": "someone"}).encode())
    assert (claims["sub"], claims["iss"]) == ("someone", key.public)


@pytest.mark.parametrize("change", [lambda s: "", lambda s: s[:-1], lambda s: "SU" + s[2:], lambda s: s[:-1] + "!"])
def test_what_is_no_seed_is_refused_by_the_setting_s_name(change):
    with pytest.raises(UserError, match=r"SYNTH_NATS_ISSUER_SEED.*not the seed.*synthd bus issuer"):
        AccountKey(change(AccountKey.new_seed()))
