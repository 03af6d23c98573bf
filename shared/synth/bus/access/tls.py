"""TLS to the bus: the certificates of a client, from its settings, and the problems that a refused connection shows."""

from __future__ import annotations

import ssl
from pathlib import Path

from nats.errors import Error as NatsError

from synth.errors import Problem, UserError
from synth.runtime.settings import ServiceSettings

# OpenSSL's codes of a certificate that is in order, and another host's or address's.
_OTHERS_NAME = (62, 64)
# OpenSSL's names of the reasons for which the server refuses our certificate.
_REFUSED_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA")


class PlainTextServer(NatsError):
    """The error if the settings require TLS and the server does not offer it."""

    def __str__(self) -> str:
        return "the server of the bus does not speak TLS"


def tls_context(settings: ServiceSettings) -> ssl.SSLContext | None:
    """Return the TLS context of every connection to the bus; None if no setting requires TLS.

    Raises `UserError` with every file that does not hold the kind of content that its setting names.
    """
    files = (settings.nats_ca, settings.nats_cert, settings.nats_key)
    servers = settings.nats_url.split(",")
    if not any(files) and not any(server.startswith("tls://") for server in servers):
        return None
    problems = [
        Problem(
            what=f"{_scheme(server)}{_host(server)} is not dialled over the TLS that the settings ask for",
            expected="tls://HOST:PORT",
            where="SYNTH_NATS_URL",
        )
        for server in servers
        if server.startswith(("ws://", "wss://"))
    ]
    context = ssl.create_default_context()
    if settings.nats_ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        problems += _load_certificates(context, settings.nats_ca, "SYNTH_NATS_CA", "the certificate of the CA (PEM)")
    problems += _load_own(context, settings.nats_cert, settings.nats_key)
    if problems:
        raise UserError(problems)
    return context


def refusal(error: Exception, settings: ServiceSettings) -> Problem | None:
    """Return the problem if a connection failed due to its certificates or missing TLS; None for another failure."""
    if isinstance(error, PlainTextServer):
        return Problem(
            what=f"the bus at {_hosts(settings)} does not speak TLS",
            expected="a nats-server with a `tls` block, since SYNTH_NATS_CA, SYNTH_NATS_CERT or tls:// asks for it",
            fix="`synthd bus config` prints one where SYNTH_NATS_SERVER_CERT is set; or leave what asks for it out",
            where="SYNTH_NATS_URL",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_trusted(error, settings)
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    if "ALERT" in reason and any(word in reason for word in _REFUSED_CERTIFICATE):
        return Problem(
            what=f"the bus refuses {settings.nats_cert or 'a client without a certificate'} ({reason})",
            expected="a certificate that is signed by the CA of the server's `ca_file`, and its key",
            fix="set SYNTH_NATS_CERT and SYNTH_NATS_KEY to them",
            where="SYNTH_NATS_CERT",
        )
    return None


def _not_trusted(error: ssl.SSLCertVerificationError, settings: ServiceSettings) -> Problem:
    what = f"the certificate of the bus at {_hosts(settings)} is refused: {error.verify_message}"
    if error.verify_code in _OTHERS_NAME:
        return Problem(
            what=what,
            expected="a host that the certificate names",
            fix="dial the bus by such a name, or make a certificate with this one among its subjectAltName",
            where="SYNTH_NATS_URL",
        )
    return Problem(
        what=what,
        expected=f"one that is valid now and signed by {settings.nats_ca or 'a CA that this machine trusts'}",
        fix="set it to the file of the CA that signed the server's certificate, or renew that certificate",
        where="SYNTH_NATS_CA",
    )


def _hosts(settings: ServiceSettings) -> str:
    """Return the addresses of the bus, without the users and passwords that a URL may hold."""
    return ",".join(_host(server) for server in settings.nats_url.split(","))


def _scheme(server: str) -> str:
    return "".join(server.partition("://")[:2])


def _host(server: str) -> str:
    return server.rpartition("@")[2].rpartition("/")[2]


def _load_own(context: ssl.SSLContext, cert: Path | None, key: Path | None) -> list[Problem]:
    if cert is None and key is None:
        return []
    if cert is None or key is None:
        return [
            Problem(
                what="not set, though the other half of a client's certificate is",
                expected="both SYNTH_NATS_CERT and SYNTH_NATS_KEY, or neither",
                fix="set it to the file (PEM), or leave the other one out",
                where="SYNTH_NATS_CERT" if cert is None else "SYNTH_NATS_KEY",
            )
        ]
    problems = _load_certificates(
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert, "SYNTH_NATS_CERT", "this service's certificate (PEM)"
    )
    expected = "the private key (PEM) of SYNTH_NATS_CERT, without a passphrase"
    problems += _unreadable(key, "SYNTH_NATS_KEY", expected)
    if problems:
        return problems
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(cert, key, password="none")
    except ssl.SSLError as error:
        other = error.reason == "KEY_VALUES_MISMATCH"
        what = f"{key} is {f'not the key of {cert}' if other else 'no private key that can be read'}"
        fix = "set it to the key that the certificate was made with"
        return [Problem(what=what, expected=expected, fix=fix, where="SYNTH_NATS_KEY")]
    return []


def _load_certificates(context: ssl.SSLContext, path: Path, setting: str, expected: str) -> list[Problem]:
    if problems := _unreadable(path, setting, expected):
        return problems
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        fix = "set it to the file that begins with -----BEGIN CERTIFICATE-----"
        return [Problem(what=f"{path} holds no certificate", expected=expected, fix=fix, where=setting)]
    return []


def _unreadable(path: Path, setting: str, expected: str) -> list[Problem]:
    try:
        path.read_bytes()
    except OSError as error:
        fix = "set it to a file that this process may read"
        return [Problem(what=f"{path}: {error.strerror}", expected=expected, fix=fix, where=setting)]
    return []
