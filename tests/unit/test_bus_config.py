"""The configuration of a deployed bus with TLS and nkeys, and what its settings refuse."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from synth.bus.access.nkeys import NkeyKind, UserKey, is_public, new_seed
from synth.bus.server.deployed import ServerTls, deployed_config, read_nkeys, read_tls
from synth.bus.server.topology import DEFAULT_POOL
from synth.errors import UserError
from synth.events.catalogue import SERVICES
from synth.local.cluster.plan import choose_ports, make_plan
from synth.local.cluster.state import ClusterState


def synthd(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "synth.synthd", *arguments]
    return subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)


def new_public() -> str:
    return UserKey(new_seed(NkeyKind.USER)).public


def test_a_user_key_is_that_of_every_other_nats_client():
    """The pair of the NATS documentation."""
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    assert UserKey(seed).public == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_only_a_public_key_of_a_user_is_one():
    public = new_public()
    assert is_public(NkeyKind.USER, public)
    assert not is_public(NkeyKind.ACCOUNT, public)
    for other in ("", public[:-1], public.lower(), "A" + public[1:], new_seed(NkeyKind.USER)):
        assert not is_public(NkeyKind.USER, other)


def test_a_user_has_a_password_or_nkeys_and_the_gateways_judge_neither():
    one, two = new_public(), new_public()
    text = deployed_config((DEFAULT_POOL,), nkeys={"gateway": (one, two)})
    assert "SYNTH_NATS_PASSWORD_GATEWAY" not in text
    assert text.count("$SYNTH_NATS_PASSWORD_") == len(SERVICES)
    judged = re.search(r'"auth_users": \[(.*?)\]', text, re.DOTALL)
    assert judged is not None
    others = [service for service in SERVICES if service != "gateway"]
    assert re.findall(r'"(\w+)"', judged[1]) == ["bus", one, two, *others]
    # Each key may do what the user may.
    assert text.count('"ask.verify"') == 2 + deployed_config((DEFAULT_POOL,)).count('"ask.verify"') - 1


def test_what_synthd_prints_of_a_key_is_what_its_settings_take():
    printed = dict(line.split("=", 1) for line in synthd("bus", "nkey", "trainer").stdout.splitlines())
    public = UserKey(printed["SYNTH_NATS_SEED"]).public
    assert read_nkeys(printed["SYNTH_NATS_NKEYS"]) == {"trainer": (public,)}
    assert synthd("bus", "nkey", "nobody").returncode == 2


def test_synthd_prints_a_server_with_mutual_tls_and_nkeys():
    public = new_public()
    files = {"SYNTH_NATS_SERVER_CERT": "/tls/s.pem", "SYNTH_NATS_SERVER_KEY": "/tls/s.key"}
    done = synthd("bus", "config", **files, SYNTH_NATS_CLIENT_CA="/tls/ca.pem", SYNTH_NATS_NKEYS=f"judge={public}")
    tls = ServerTls("/tls/s.pem", "/tls/s.key", "/tls/ca.pem")
    assert done.stdout == deployed_config((DEFAULT_POOL,), nkeys={"judge": (public,)}, tls=tls)
    assert '"verify": true' in done.stdout
    assert '"verify"' not in synthd("bus", "config", **files).stdout


def test_settings_that_the_configuration_cannot_be_made_of_are_named_at_once():
    seed, public = new_seed(NkeyKind.USER), new_public()
    with pytest.raises(UserError) as error:
        read_nkeys(f"nobody={public}, gateway={seed}, {seed}, judge={public}")
    assert [problem.what for problem in error.value.problems] == [
        "'nobody' is no user of the bus",
        "the entry of gateway is no public key of a user",
        "an entry has no USER= before its key",
    ]
    assert seed not in str(error.value)
    for given, missing in ((("c", "", ""), "KEY"), (("", "k", ""), "CERT"), (("", "", "ca"), "CERT")):
        with pytest.raises(UserError, match=f"^SYNTH_NATS_SERVER_{missing}: not set"):
            read_tls(*given)
    done = synthd("bus", "config", SYNTH_NATS_NKEYS="judge=x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: SYNTH_NATS_NKEYS: the entry of judge")


def test_the_cluster_on_one_machine_is_not_told_of_another_bus(tmp_path, monkeypatch):
    for name in ("SYNTH_NATS_CA", "SYNTH_NATS_CERT", "SYNTH_NATS_KEY", "SYNTH_NATS_SEED"):
        monkeypatch.setenv(name, "/of/another/bus")
    state = ClusterState()
    choose_ports(state, SERVICES, port=0)
    plan = make_plan(state, tmp_path, SERVICES)
    for spec in (plan.provision, *plan.services):
        told = {name for name in spec.env if name.startswith("SYNTH_NATS")} - {"SYNTH_NATS_ISSUER_SEED"}
        assert told == {"SYNTH_NATS_URL", "SYNTH_NATS_USER", "SYNTH_NATS_PASSWORD"}
