"""The secrets of a service: one for each purpose, derived from the cluster's secret, and no more than it needs.

A derived secret reveals neither the cluster's secret nor another purpose's. A service is given the cluster's secret and
derives its own, or it is given only those. Each purpose has a current secret, which protects new data, and may have
earlier ones, which open and check older data.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from synth.errors import InvalidKey, Permanent, UserError

#: The settings that hold the cluster's secrets, and a service's own in their place.
CLUSTER_SECRET = "SYNTH_CLUSTER_SECRET"
CLUSTER_SECRET_EARLIER = "SYNTH_CLUSTER_SECRET_EARLIER"
SERVICE_SECRETS = "SYNTH_SECRETS"

#: Hex digits of the public id of a secret.
ID_LENGTH = 8

_SALT = b"synth"
_BYTES = 32
_CLUSTER_SECRET_LENGTH = 16


class Purpose(StrEnum):
    """The use of a secret. The value is part of the derivation: another value is another secret."""

    CREDENTIALS = "credentials"
    """Signs and checks the credentials of rollouts (cids)."""

    GATEWAY_CALLS = "gateway-calls"
    """Signs the gateway's calls of inference processes."""

    ROLLOUTS_CALLS = "rollouts-calls"
    """Signs the collectors' calls of inference processes."""

    JUDGE_CALLS = "judge-calls"
    """Signs the judge's calls of inference processes."""

    ENVIRONMENT_KEYS = "environment-keys"
    """Seals stored environment keys, and finds the keys that may open a chat."""

    JUDGE_KEYS = "judge-keys"
    """Seals stored keys of judges' APIs."""

    CLIENTS = "clients"
    """The key pair that clients seal environment keys for; signs device codes."""

    FENCES = "fences"
    """Names the fences around the text in a judge's prompt; no rollout may guess them."""


#: The purposes that each service needs and gets: `bus` is the operator's `synthd bus`.
NEEDS: Mapping[str, tuple[Purpose, ...]] = {
    "gateway": (
        Purpose.CREDENTIALS,
        Purpose.GATEWAY_CALLS,
        Purpose.ENVIRONMENT_KEYS,
        Purpose.JUDGE_KEYS,
        Purpose.CLIENTS,
    ),
    "validator": (),
    "verifier": (Purpose.ENVIRONMENT_KEYS,),
    "files": (),
    "rollouts": (Purpose.CREDENTIALS, Purpose.ROLLOUTS_CALLS, Purpose.ENVIRONMENT_KEYS),
    "inference": (Purpose.CREDENTIALS, Purpose.GATEWAY_CALLS, Purpose.ROLLOUTS_CALLS, Purpose.JUDGE_CALLS),
    "judge": (Purpose.JUDGE_CALLS, Purpose.JUDGE_KEYS, Purpose.FENCES),
    "trainer": (),
    "bus": (Purpose.ENVIRONMENT_KEYS, Purpose.JUDGE_KEYS),
}


@dataclass(frozen=True)
class DerivedSecret:
    """The secret of one purpose. id: a public name, which does not reveal the secret."""

    key: bytes = field(repr=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.sha256(b"synth key id:" + self.key).hexdigest()[:ID_LENGTH])

    def for_use(self, use: str) -> bytes:
        """Derive 32 bytes for one use of the purpose: no key serves two algorithms."""
        return hkdf(self.key, salt=_SALT, info=use.encode())


@dataclass(frozen=True)
class Keyring:
    """The secrets of one purpose, the current one first. setting: the setting for earlier ones."""

    purpose: Purpose
    secrets: tuple[DerivedSecret, ...]
    setting: str

    @property
    def current(self) -> DerivedSecret:
        """The secret that protects new data."""
        return self.secrets[0]

    def __iter__(self) -> Iterator[DerivedSecret]:
        return iter(self.secrets)

    def find(self, id: str) -> DerivedSecret | None:
        """Return the secret of this id; None if there is none."""
        return next((secret for secret in self.secrets if secret.id == id), None)

    def need(self, id: str) -> DerivedSecret:
        """Return the secret of this id. Raises `InvalidKey`, which names the setting that lacks it."""
        secret = self.find(id)
        if not id:
            raise InvalidKey("a stored secret does not name the key that it was sealed under: store it again")
        if secret is None:
            raise InvalidKey(
                f"a stored secret was sealed under the key {id}, and this process has {self._ids()} for "
                f"{self.purpose}: the secret that {id} follows from is missing in {self.setting}"
            )
        return secret

    def _ids(self) -> str:
        return ", ".join(secret.id for secret in self.secrets)


class ServiceSecrets:
    """The secrets that a service has, by purpose."""

    def __init__(self, service: str, keyrings: Mapping[Purpose, Keyring]) -> None:
        self._service = service
        self._keyrings = dict(keyrings)

    def __getitem__(self, purpose: Purpose) -> Keyring:
        """Return the secrets of a purpose. Raises `Permanent` for one that the service was not given."""
        try:
            return self._keyrings[purpose]
        except KeyError:
            raise Permanent(f"{self._service} was not given the secret for {purpose}") from None

    @classmethod
    def derive(cls, service: str, cluster_secret: str, earlier: Sequence[str] = ()) -> ServiceSecrets:
        """Derive the secrets of this service from the cluster's secret and from earlier ones.

        Raises `UserError` for a secret that could be guessed.
        """
        _check_length(cluster_secret, CLUSTER_SECRET)
        for secret in earlier:
            _check_length(secret, CLUSTER_SECRET_EARLIER)
        # A secret that is listed twice is one secret.
        raw = dict.fromkeys([cluster_secret, *earlier])
        return cls(
            service,
            {
                purpose: Keyring(purpose, tuple(_derive(secret, purpose) for secret in raw), CLUSTER_SECRET_EARLIER)
                for purpose in NEEDS[service]
            },
        )

    @classmethod
    def parse(cls, service: str, text: str) -> ServiceSecrets:
        """Parse the result of `text` for this service. Raises `UserError` if a secret is missing or not its own."""
        keyrings: dict[Purpose, Keyring] = {}
        for part in filter(None, text.split(",")):
            name, _, keys = part.partition("=")
            try:
                purpose = Purpose(name.strip())
                secrets = tuple(DerivedSecret(bytes.fromhex(key)) for key in keys.strip().split(":"))
            except ValueError as error:
                raise _unusable(service, "it is not in the form that the command prints") from error
            if any(len(secret.key) != _BYTES for secret in secrets):
                raise _unusable(service, f"a secret for {purpose} is not {2 * _BYTES} hex digits")
            keyrings[purpose] = Keyring(purpose, secrets, SERVICE_SECRETS)
        if lacking := [purpose for purpose in NEEDS[service] if purpose not in keyrings]:
            raise _unusable(service, f"it lacks the secrets for {', '.join(lacking)}")
        if needless := sorted(set(keyrings) - set(NEEDS[service])):
            raise _unusable(service, f"it has secrets that {service} must not hold: {', '.join(needless)}")
        return cls(service, keyrings)

    def text(self) -> str:
        """Return the value of `SYNTH_SECRETS`: `purpose=<current>:<earlier>…,purpose=…`, in hex."""
        return ",".join(
            f"{purpose}={':'.join(secret.key.hex() for secret in keyring)}"
            for purpose, keyring in self._keyrings.items()
        )


def secrets_variable(service: str) -> str:
    """Return docker-compose.yml's variable for a service's secrets, as `synthd secrets` prints them for all."""
    return f"{SERVICE_SECRETS}_{service.upper()}"


def hkdf(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Return one block of HKDF-SHA256 (RFC 5869), 32 bytes."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def _derive(cluster_secret: str, purpose: Purpose) -> DerivedSecret:
    return DerivedSecret(hkdf(cluster_secret.encode(), salt=_SALT, info=purpose.encode()))


def _check_length(secret: str, setting: str) -> None:
    if len(secret) < _CLUSTER_SECRET_LENGTH:
        raise UserError(
            f"the cluster secret has {len(secret)} characters",
            expected=f"at least {_CLUSTER_SECRET_LENGTH}: every secret that signs or seals follows from it",
            fix="set the same long random value for every service, such as `openssl rand -hex 24` gives, or "
            f"{SERVICE_SECRETS} to what `synthd secrets SERVICE` prints",
            where=setting,
        )
    if "," in secret or secret != secret.strip():
        raise UserError(
            "the cluster secret holds a comma, or begins or ends with white space",
            expected=f"one that can be listed in {CLUSTER_SECRET_EARLIER} once there is another",
            fix="set a long random value, such as `openssl rand -hex 24` gives",
            where=setting,
        )


def _unusable(service: str, what: str) -> UserError:
    fix = f"set the output of `synthd secrets {service}`, run on a machine with the cluster's secret"
    return UserError(what, expected=f"the secrets of {service}", fix=fix, where=SERVICE_SECRETS)
