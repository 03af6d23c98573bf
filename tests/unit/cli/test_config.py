"""Where settings come from, and what happens to a user's `.env`."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.bus.server.embedded import free_port
from synth.cli.commands.cluster.run import leads_elsewhere
from synth.client.connections.config import ConfigValue, find_env_file, resolve
from synth.console.errors import NotAuthorised, UsageProblem
from synth.local.cluster.control import prepare_cluster
from synth.local.cluster.env_file import merge_env_file, write_address
from synth.local.cluster.state import ClusterState, StateFile
from synth.runtime.environment.env_file import read_env_file
from tests.unit.cli.backend import SETTINGS


@pytest.fixture
def env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key in SETTINGS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.chdir(tmp_path)
    return Path(".env")


def test_a_flag_wins_over_the_environment_and_that_over_the_file(env_file: Path, monkeypatch: pytest.MonkeyPatch):
    assert resolve(backend=None, env_files=[env_file]).backend.origin == "default"
    env_file.write_text("BACKEND_BASE_URL=http://file:1\n")
    assert resolve(backend=None, env_files=[env_file]).backend.text == "http://file:1/api"
    monkeypatch.setenv("BACKEND_BASE_URL", "http://environment:2/api/")
    assert resolve(backend=None, env_files=[env_file]).backend.text == "http://environment:2/api"
    assert resolve(backend="http://flag:3", env_files=[env_file]).backend.text == "http://flag:3/api"


def test_no_key_says_how_to_get_one(env_file: Path):
    with pytest.raises(NotAuthorised, match="synthctl up") as caught:
        resolve(backend=None, env_files=[env_file]).require_api_key()
    assert caught.value.code == 4


@pytest.mark.parametrize("address", ["localhost:8000", "http://", "ftp://x", "http://x:port", "http://[::1"])
def test_an_address_that_is_none_is_named_with_its_place(env_file: Path, address: str):
    env_file.write_text(f"BACKEND_BASE_URL={address}\n")
    with pytest.raises(UsageProblem) as caught:
        resolve(backend=None, env_files=[env_file])
    assert address in str(caught.value)
    assert ".env" in str(caught.value)


def test_a_named_env_file_must_be_there(env_file: Path):
    with pytest.raises(UsageProblem, match=r"other\.env"):
        resolve(backend=None, env_files=[Path("other.env")])


def test_of_two_env_files_the_first_that_has_a_key_says_what_it_is(env_file: Path):
    env_file.write_text("SYNTH_API_KEY=first\n")
    Path("more.env").write_text("SYNTH_API_KEY=second\nTASK_APP_URL=http://more\n")
    config = resolve(backend=None, env_files=[env_file, Path("more.env")])
    assert config.api_key == ConfigValue("first", ".env")
    assert config.task_url == ConfigValue("http://more", "more.env")


def test_the_nearest_env_file_is_found_in_the_folders_above(tmp_path: Path):
    deep = tmp_path / "repository" / "a" / "b"
    deep.mkdir(parents=True)
    top = tmp_path / ".env"
    top.touch()
    assert find_env_file(deep, home=tmp_path) == top
    (tmp_path / "repository" / ".git").mkdir()
    assert find_env_file(deep, home=tmp_path) == deep / ".env"
    nearer = tmp_path / "repository" / ".env"
    nearer.touch()
    assert find_env_file(deep, home=tmp_path) == nearer
    (deep / ".env").touch()
    assert find_env_file(deep, home=tmp_path) == deep / ".env"


def test_outside_of_home_and_of_a_repository_no_folder_above_is_looked_into(tmp_path: Path):
    (tmp_path / ".env").touch()
    folder = tmp_path / "a"
    folder.mkdir()
    assert find_env_file(folder, home=tmp_path / "home") == folder / ".env"


def test_the_other_clients_name_for_the_address_is_read_where_ours_is_not_set(
    env_file: Path, monkeypatch: pytest.MonkeyPatch
):
    env_file.write_text("BACKEND_BASE_URL=http://file:1\n")
    monkeypatch.setenv("BACKEND_OVERRIDE", "http://override:2/api")
    assert resolve(backend=None, env_files=[env_file]).backend.text == "http://override:2/api"
    monkeypatch.setenv("BACKEND_BASE_URL", "http://ours:3")
    assert resolve(backend=None, env_files=[env_file]).backend.text == "http://ours:3/api"


def test_env_lines_are_read_with_quotes_comments_and_export(env_file: Path):
    env_file.write_text("# c\nexport A='1 # 2'\nB=\"x\"  # note\nC = y # note\nno line\nD=\n=z\nE=a=b\n")
    assert read_env_file(env_file) == {"A": "1 # 2", "B": "x", "C": "y", "D": "", "E": "a=b"}


def test_merging_adds_what_is_missing_and_changes_nothing_else(env_file: Path):
    env_file.write_text("# mine\nSYNTH_API_KEY=own\nOTHER='x y'")
    env_file.chmod(0o640)
    assert merge_env_file(env_file, {"SYNTH_API_KEY": "ours", "BACKEND_BASE_URL": "http://h"}) == ["BACKEND_BASE_URL"]
    assert env_file.read_text() == "# mine\nSYNTH_API_KEY=own\nOTHER='x y'\nBACKEND_BASE_URL=http://h\n"
    assert env_file.stat().st_mode & 0o777 == 0o640
    assert merge_env_file(env_file, {"SYNTH_API_KEY": "ours"}) == []


def test_the_address_that_up_wrote_follows_the_port_and_the_users_own_stays(env_file: Path):
    env_file.write_text("# mine\nOTHER=1")
    assert write_address(env_file, "http://127.0.0.1:8000/api")
    assert not write_address(env_file, "http://127.0.0.1:8000/api")
    before = env_file.read_text()
    assert write_address(env_file, "http://127.0.0.1:8951/api")
    assert env_file.read_text() == before.replace("8000", "8951")
    assert resolve(backend=None, env_files=[env_file]).backend.text == "http://127.0.0.1:8951/api"
    env_file.write_text("BACKEND_BASE_URL=http://mine:1\n")
    assert not write_address(env_file, "http://127.0.0.1:8951/api")
    assert env_file.read_text() == "BACKEND_BASE_URL=http://mine:1\n"


def test_up_with_another_port_changes_the_address_that_an_earlier_up_wrote(env_file: Path):
    services, file = ("gateway",), StateFile(env_file.parent.resolve() / "data")
    prepared = None
    for port in (free_port(), free_port()):
        with file.locked():
            prepared = prepare_cluster(
                file, services, port=port, env_file=env_file, plan=lambda: (ClusterState().devices, "")
            )
        assert resolve(backend=None, env_files=[env_file]).backend.text == f"http://127.0.0.1:{port}/api"
    assert prepared is not None
    assert "wrote BACKEND_BASE_URL to .env" in prepared.notes


def test_an_address_that_wins_over_the_clusters_own_is_named_with_its_place(
    env_file: Path, monkeypatch: pytest.MonkeyPatch
):
    state = ClusterState(url="http://127.0.0.1:8951")
    write_address(env_file, f"{state.url}/api")

    def told(backend: str | None = None) -> str:
        return leads_elsewhere(state, resolve(backend=backend, env_files=[env_file]).backend)

    own = f"not to this cluster at {state.url}/api; to use this cluster, "
    assert told() == ""
    assert told("http://localhost:" + state.url.rpartition(":")[2]) == ""
    assert told("http://flag:1") == (
        f"--backend (flag) is http://flag:1/api and wins: commands here go there, {own}leave the flag out"
    )
    env_file.write_text("BACKEND_BASE_URL=http://mine:1\n")
    assert told() == (
        f"BACKEND_BASE_URL (.env) is http://mine:1/api and wins: commands here go there, {own}remove its line from .env"
    )
    monkeypatch.setenv("BACKEND_OVERRIDE", "http://env:1")
    assert told().endswith(f"{own}unset BACKEND_OVERRIDE")


def test_a_new_env_file_is_for_its_owner_only_and_a_link_stays_one(env_file: Path):
    merge_env_file(env_file, {"SYNTH_API_KEY": "k"})
    assert env_file.stat().st_mode & 0o777 == 0o600
    env_file.rename("real.env")
    env_file.symlink_to("real.env")
    merge_env_file(env_file, {"B": "1"})
    assert env_file.is_symlink()
    assert read_env_file(Path("real.env")) == {"SYNTH_API_KEY": "k", "B": "1"}
