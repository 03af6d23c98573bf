"""Which functions of an operator's own a job may name, and that looking at a name runs nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.errors import Permanent
from synth.plugins import PluginSettings, is_plugin, load_plugin, plugin_refused

SOURCE = """
import somewhere_that_is_not_installed
from math import floor as rounded
def loss(inputs, *, clip):
    def inner(): ...
if True:
    advantage = lambda rewards: rewards
NUMBER = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose import fails, and whose modules would be seen to be imported."""
    folder = tmp_path / "acme_plugins"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "losses.py").write_text(SOURCE)
    (tmp_path / "acme_good.py").write_text("def f(x): return x\nNUMBER = 3\n")
    (tmp_path / "acme_star.py").write_text("from math import *\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "acme_plugins"
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


def refused(name: str, *allowed: str) -> str:
    problem = plugin_refused(name, allowed, where="job.toml:3")
    return problem.text() if problem is not None else ""


@pytest.mark.parametrize("name", ["a:b", "a.b_c.d:f2", "_a:_b"])
def test_a_plugin_is_a_module_and_a_function(name: str):
    assert is_plugin(name)


@pytest.mark.parametrize(
    "name", ["gspo", "a.b", ":f", "a:", "a..b:f", "a:b:c", "a/b:f", ".a:f", "a: f", "a:b.c", "1:f"]
)
def test_anything_else_is_none(name: str):
    assert not is_plugin(name)


def test_a_module_that_is_not_allowed_is_refused_with_those_that_are(package: str):
    said = refused("os:system", "acme_good", "acme_plugins.losses")
    assert "'os' is no module that this cluster runs code of" in said
    assert "a module of acme_good, acme_plugins.losses" in said
    assert "no plugins are allowed" in refused("acme_good:f")
    assert refused("acme_good:f", "acme") != ""  # a name's beginning is not its package
    assert refused("acme_plugins:loss", "acme_plugins.losses") != ""  # nor is what is above it


def test_an_allowed_package_has_its_modules_with_it_and_none_is_imported(package: str):
    assert refused("acme_plugins.losses:loss", "acme_plugins") == ""
    assert refused("acme_plugins.losses:rounded", "acme_plugins") == ""
    assert refused("acme_plugins.losses:advantage", "acme_plugins.losses") == ""
    assert not [name for name in sys.modules if name.startswith("acme_")]


def test_what_is_not_there_is_refused_with_the_nearest(package: str):
    assert "did you mean 'loss'?" in refused("acme_plugins.losses:los", "acme_plugins")
    assert "has no function 'inner'" in refused("acme_plugins.losses:inner", "acme_plugins")
    assert "is not installed here" in refused("acme_plugins.lozzes:loss", "acme_plugins")
    assert "is not installed here" in refused("acme_nowhere.x:loss", "acme_nowhere")
    assert refused("acme_star:anything", "acme_star") == ""  # only who imports it can tell


def test_loading_says_what_is_wrong(package: str):
    assert load_plugin("acme_good:f", ("acme_good",))(3) == 3
    with pytest.raises(Permanent, match="RuntimeError: imported"):
        load_plugin("acme_plugins.losses:loss", ("acme_plugins",))
    with pytest.raises(Permanent, match="no module that this cluster runs"):
        load_plugin("acme_good:f", ("acme_plugins",))
    with pytest.raises(Permanent, match="is a int; expected a function"):
        load_plugin("acme_good:NUMBER", ("acme_good",))
    with pytest.raises(Permanent, match="no attribute 'anything'"):
        load_plugin("acme_star:anything", ("acme_star",))


def test_the_setting_is_a_list_with_commas(monkeypatch: pytest.MonkeyPatch):
    assert PluginSettings().plugins == ()
    monkeypatch.setenv("SYNTH_PLUGINS", "acme.losses, acme_rl ,")
    assert PluginSettings().plugins == ("acme.losses", "acme_rl")
