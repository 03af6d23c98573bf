"""What a service has of the cluster's secret: derivation, ids, what it is given, and what an earlier secret opens."""

from __future__ import annotations

import ast
import base64
from pathlib import Path

import pytest
from nacl.public import PublicKey, SealedBox
from pydantic import SecretStr

from synth.bus.kv.bucket import seal_text, unseal_text
from synth.bus.kv.environment_keys import EnvironmentKeyStore
from synth.bus.kv.reseal import Resealer
from synth.errors import InvalidKey, Permanent, UserError
from synth.events.catalogue import SERVICES
from synth.keys import Cid, mint_cid, open_sealed, read_cid, sealing_key
from synth.outbound.service_calls import CallSigner
from synth.runtime.settings import ServiceSettings
from synth.service_secrets import ID_LENGTH, NEEDS, Purpose, ServiceSecrets, hkdf
from synth.synthd import main
from tests.keyrings import calls_of, credentials, keyring, secrets_of, verifier_of

OLD, NEW = "the secret before", "the secret of today"
CID = Cid(rollout_id="job_1_t0_0", nonce=1, replica="r-1", version=3, calls=9, ends=2**40, expires=2**40)
_SERVICES = Path(__file__).parents[2] / "services/synth"


def settings(**given: str) -> ServiceSettings:
    return ServiceSettings(**{name: SecretStr(value) for name, value in given.items()})  # type: ignore[arg-type]


def test_the_derivation_is_hkdf_sha256():
    """The first 32 bytes of the output of RFC 5869's first test case."""
    derived = hkdf(b"\x0b" * 22, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)))
    assert derived.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_each_purpose_has_a_secret_of_its_own_which_is_the_same_in_every_service():
    found: dict[Purpose, set[bytes]] = {purpose: set() for purpose in Purpose}
    for service, purposes in NEEDS.items():
        for purpose in purposes:
            found[purpose].add(secrets_of(service)[purpose].current.key)
    assert all(len(keys) == 1 for keys in found.values())
    assert len(set[bytes]().union(*found.values())) == len(Purpose)


def test_the_derivation_does_not_change():
    """Whoever changes it loses every stored secret."""
    [secret] = keyring(Purpose.ENVIRONMENT_KEYS, "0123456789abcdef").secrets
    assert secret.key.hex() == "e3e4f283fd0ea47e409f88d9f493077f7e4ffb00839a6171b487359c571dae60"
    assert secret.id == "cc763ac2"


def test_an_id_says_which_secret_it_was_and_nothing_of_it():
    old, new = credentials(OLD).current, credentials(NEW).current
    assert old.id != new.id
    assert len(old.id) == ID_LENGTH
    assert old.id not in old.key.hex()
    assert old.key.hex() not in repr(secrets_of()[Purpose.CREDENTIALS])
    assert credentials(NEW, OLD).find(old.id) == old
    assert credentials(NEW, OLD).current == new
    assert credentials(NEW).find(old.id) is None


def test_a_secret_that_is_listed_twice_is_one():
    assert credentials(NEW, OLD, NEW) == credentials(NEW, OLD)


@pytest.mark.parametrize("service", NEEDS)
def test_a_service_that_is_given_its_own_secrets_has_what_it_would_have_derived(service: str):
    derived = secrets_of(service, NEW, OLD)
    given = settings(secrets=derived.text()).secrets_of(service)
    for purpose in Purpose:
        if purpose in NEEDS[service]:
            assert given[purpose].secrets == derived[purpose].secrets
            assert len(given[purpose].secrets) == 2
            continue
        for secrets in (given, derived):
            with pytest.raises(Permanent, match=f"{service} was not given the secret for {purpose}"):
                secrets[purpose]


def test_a_service_says_which_secret_it_lacks_or_must_not_have():
    with pytest.raises(UserError, match=r"SYNTH_SECRETS: it lacks the secrets for environment-keys.*secrets rollouts"):
        settings(secrets=secrets_of("inference").text()).secrets_of("rollouts")
    with pytest.raises(UserError, match="must not hold: clients, credentials, gateway-calls, judge-keys"):
        settings(secrets=secrets_of("gateway").text()).secrets_of("verifier")
    for unreadable in ("nonsense", "credentials=zz,gateway-calls=00", "other=00"):
        with pytest.raises(UserError, match="SYNTH_SECRETS: it is not in the form that the command prints"):
            settings(secrets=unreadable).secrets_of("inference")
    for short in ("00ff", "", f"{'00' * 32}:"):
        with pytest.raises(UserError, match="a secret for credentials is not 64 hex digits"):
            settings(secrets=f"credentials={short}").secrets_of("inference")


def test_a_service_takes_the_clusters_secret_or_its_own_and_not_both():
    own = secrets_of("inference").text()
    for more in ({"cluster_secret": NEW}, {"cluster_secret_earlier": OLD}):
        with pytest.raises(UserError, match="the cluster's secret is set beside the secrets of inference"):
            settings(secrets=own, **more).secrets_of("inference")


def test_a_service_that_needs_no_secret_starts_without_one_and_any_other_does_not():
    for service, needs in NEEDS.items():
        if not needs:
            assert settings().secrets_of(service).text() == ""
            continue
        with pytest.raises(UserError, match=r"SYNTH_CLUSTER_SECRET: .* or SYNTH_SECRETS to what `synthd secrets"):
            settings().secrets_of(service)


def test_earlier_secrets_are_separated_by_commas_and_none_may_be_one_that_could_be_guessed():
    given = settings(cluster_secret=NEW, cluster_secret_earlier=f" {OLD}, a secret from before it,").secrets_of(
        "gateway"
    )
    expected = keyring(Purpose.GATEWAY_CALLS, NEW, OLD, "a secret from before it").secrets
    assert given[Purpose.GATEWAY_CALLS].secrets == expected
    with pytest.raises(UserError, match="SYNTH_CLUSTER_SECRET_EARLIER: the cluster secret has 5 characters"):
        settings(cluster_secret=NEW, cluster_secret_earlier="short").secrets_of("gateway")
    with pytest.raises(UserError, match="SYNTH_CLUSTER_SECRET: the cluster secret has 0 characters"):
        settings(cluster_secret_earlier=OLD).secrets_of("gateway")


def test_a_credential_that_was_signed_before_a_rotation_is_accepted_until_its_secret_is_dropped():
    signed = mint_cid(CID, credentials(OLD))
    assert read_cid(signed, credentials(NEW, OLD)) == CID
    assert mint_cid(CID, credentials(NEW, OLD)) == mint_cid(CID, credentials(NEW)) != signed
    with pytest.raises(InvalidKey, match="not a rollout credential of this cluster"):
        read_cid(signed, credentials(NEW))
    # Where services are restarted one by one, the next secret is accepted before anything is made with it.
    assert read_cid(mint_cid(CID, credentials(NEW)), credentials(OLD, NEW)) == CID
    # It says whose it is, and cannot be made another's by saying so.
    new = credentials(NEW).current.id
    with pytest.raises(InvalidKey):
        read_cid(signed.replace(credentials(OLD).current.id, new), credentials(NEW, OLD))


def test_a_record_under_an_unknown_secret_names_its_id_and_the_setting():
    sealed = seal_text("{}", keyring(Purpose.ENVIRONMENT_KEYS, OLD))
    assert unseal_text(sealed, keyring(Purpose.ENVIRONMENT_KEYS, NEW, OLD)) == "{}"
    with pytest.raises(InvalidKey, match=f"under the key {sealed.key}.*missing in SYNTH_CLUSTER_SECRET_EARLIER"):
        unseal_text(sealed, keyring(Purpose.ENVIRONMENT_KEYS, NEW))
    own = ServiceSecrets.parse("verifier", secrets_of("verifier", NEW).text())
    with pytest.raises(InvalidKey, match=f"under the key {sealed.key}.*missing in SYNTH_SECRETS"):
        unseal_text(sealed, own[Purpose.ENVIRONMENT_KEYS])


def test_what_clients_sealed_before_a_rotation_is_opened():
    box = SealedBox(PublicKey(base64.b64decode(sealing_key(keyring(Purpose.CLIENTS, OLD)))))
    sealed = base64.b64encode(box.encrypt(b"env_key")).decode()
    assert open_sealed(sealed, keyring(Purpose.CLIENTS, NEW, OLD)) == b"env_key"
    assert sealing_key(keyring(Purpose.CLIENTS, NEW, OLD)) == sealing_key(keyring(Purpose.CLIENTS, NEW))
    for text in (sealed, "no base64", ""):
        with pytest.raises(InvalidKey, match="not a sealed box"):
            open_sealed(text, keyring(Purpose.CLIENTS, NEW))


def test_a_call_of_a_service_that_was_not_restarted_yet_is_accepted():
    callers = (Purpose.GATEWAY_CALLS,)
    earlier, current = (calls_of("gateway", secret).authorization("r-1", "org_1") for secret in (OLD, NEW))
    verifier_of("r-1", NEW, OLD).verify(earlier, "org_1", of=callers)
    verifier_of("r-1", NEW).verify(current, "org_1", of=callers)
    for authorization in (earlier, "", "Bearer x", "Bearer gateway-calls.00000000.1.00"):
        with pytest.raises(InvalidKey, match="not a service of this cluster that may make this call"):
            verifier_of("r-1", NEW).verify(authorization, "org_1", of=callers)


def test_a_token_of_a_call_is_for_one_receiver_one_organisation_and_a_short_time():
    callers = (Purpose.GATEWAY_CALLS, Purpose.JUDGE_CALLS)
    token = calls_of("gateway").authorization("r-1", "org_1")
    verifier_of("r-1").verify(token, "org_1", of=callers)
    later = token.replace(".", ".", 1).split(".")
    later[2] = str(int(later[2]) + 1)
    for receiver, about, given in (("r-2", "org_1", token), ("r-1", "org_2", token), ("r-1", "org_1", ".".join(later))):
        with pytest.raises(InvalidKey, match="for another receiver, organisation or job, or was changed"):
            verifier_of(receiver).verify(given, about, of=callers)
    with pytest.raises(InvalidKey, match="that may make this call"):
        verifier_of("r-1").verify(token, "org_1", of=(Purpose.ROLLOUTS_CALLS,))
    expired = CallSigner(secrets_of("gateway")[Purpose.GATEWAY_CALLS], lasts_s=-5).authorization("r-1", "org_1")
    with pytest.raises(InvalidKey, match=r"has expired: .* SYNTH_CALL_TOKEN_S"):
        verifier_of("r-1").verify(expired, "org_1", of=callers)


def test_the_command_prints_what_a_service_is_given(capsys, monkeypatch):
    monkeypatch.setenv("SYNTH_CLUSTER_SECRET", NEW)
    monkeypatch.setenv("SYNTH_CLUSTER_SECRET_EARLIER", OLD)
    # Where compose runs it, `synthd bus` has secrets of its own.
    monkeypatch.setenv("SYNTH_SECRETS", secrets_of("bus", OLD).text())
    for arguments in (["secrets", "judge"], ["secrets"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    one, *all = capsys.readouterr().out.splitlines()
    assert one == f"SYNTH_SECRETS={secrets_of('judge', NEW, OLD).text()}"
    assert one.replace("SYNTH_SECRETS", "SYNTH_SECRETS_JUDGE") in all
    assert len(all) == len([service for service in NEEDS if NEEDS[service]])
    assert not [line for line in (one, *all) if NEW in line or OLD in line]


def test_every_service_is_in_the_table_and_is_given_what_its_code_uses():
    assert set(NEEDS) == {"bus", *SERVICES}
    for service in SERVICES:
        uses = set[str]()
        for file in (_SERVICES / service).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute):
                    uses.add(f"Purpose.{node.attr}" if ast.unparse(node.value) == "Purpose" else node.attr)
        used = {purpose for purpose in Purpose if f"Purpose.{purpose.name}" in uses}
        # By the store of secrets.
        if uses & {name for name in vars(EnvironmentKeyStore) if not name.startswith("_")}:
            used.add(Purpose.ENVIRONMENT_KEYS)
        if uses & {"judge_key", "put_judge_key"}:
            used.add(Purpose.JUDGE_KEYS)
        assert used == set(NEEDS[service]), service
    assert set(NEEDS["bus"]) == {purpose for purpose, _ in Resealer.SEALED}
