"""The codes by which a person approves a new machine."""

from __future__ import annotations

import time

import pytest

from synth.errors import InvalidKey
from synth.gateway.api.synth.device_codes import LIFETIME_S, new_device_code, read_device_code, read_user_code
from synth.service_secrets import Purpose, ServiceSecrets

OURS = ServiceSecrets.derive("gateway", "a secret of this cluster")[Purpose.CLIENTS]
ROTATED = ServiceSecrets.derive("gateway", "the next secret of it", ["a secret of this cluster"])[Purpose.CLIENTS]
OTHERS = ServiceSecrets.derive("gateway", "a secret of another one")[Purpose.CLIENTS]


def test_a_device_code_names_its_end_and_its_user_code():
    code = new_device_code(OURS)
    assert code.expires_at == pytest.approx(time.time() + LIFETIME_S, abs=5)
    for keyring in (OURS, ROTATED):
        assert read_device_code(code.text, keyring) == code
        assert read_user_code(code.user_code, keyring) == code.user_code
    assert new_device_code(OURS).user_code != code.user_code


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: "f" + c, lambda c: c.replace("-", "+"), lambda _: ""])
def test_a_changed_device_code_is_refused(change):
    code = new_device_code(OURS)
    with pytest.raises(InvalidKey):
        read_device_code(change(code.text), OURS)
    with pytest.raises(InvalidKey):
        read_device_code(code.text, OTHERS)


def test_a_device_code_cannot_be_prolonged():
    end, rest = new_device_code(OURS).text.split("-", 1)
    with pytest.raises(InvalidKey):
        read_device_code(f"{int(end, 16) + 3600:x}-{rest}", OURS)


def test_a_user_code_is_read_as_people_type_it():
    code = new_device_code(OURS).user_code
    for typed in (code.lower(), code.replace("-", ""), f" {code.replace('-', ' ')} ", code.replace("0", "o")):
        assert read_user_code(typed, OURS) == code


def test_a_mistyped_user_code_is_refused():
    code = new_device_code(OURS).user_code
    for at, letter in enumerate(code):
        if letter != "-":
            with pytest.raises(InvalidKey):
                read_user_code(code[:at] + ("7" if letter != "7" else "8") + code[at + 1 :], OURS)
    for wrong in ("", "AAAA-AAAA-AAAA", code[:-1], f"{code}-{code}"):
        with pytest.raises(InvalidKey):
            read_user_code(wrong, OURS)
