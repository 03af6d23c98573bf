"""Where settings come from, and what happens to a user's `.env`."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.cli.cluster.env_file import merge_env_file
from synth.cli.config import ConfigValue, find_env_file, resolve
from synth.cli.errors import NotAuthorised, UsageProblem
from synth.runtime.environment.env_file import read_env_file

KEYS = ("SYNTH_API_KEY", "BACKEND_BASE_URL", "BACKEND_OVERRIDE", "ENVIRONMENT_API_KEY", "TASK_APP_URL")


@pytest.fixture
def env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for key in KEYS:
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


def test_a_new_env_file_is_for_its_owner_only_and_a_link_stays_one(env_file: Path):
    merge_env_file(env_file, {"SYNTH_API_KEY": "k"})
    assert env_file.stat().st_mode & 0o777 == 0o600
    env_file.rename("real.env")
    env_file.symlink_to("real.env")
    merge_env_file(env_file, {"B": "1"})
    assert env_file.is_symlink()
    assert read_env_file(Path("real.env")) == {"SYNTH_API_KEY": "k", "B": "1"}
