"""What the child processes of a service have of its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import date
from pathlib import Path

import pytest

from synth.chat.template_source import RenderOptions, TemplateSource
from synth.datasets.parquet import ParquetUnreadable
from synth.files.parquet_process import read_parquet
from synth.runtime.environment.child_environment import child_environment, withhold_environment
from synth.verifier.render_process import render_rows

KEYS = {
    "SYNTH_CLUSTER_SECRET": "x",
    "SYNTH_SECRETS": "x",
    "SYNTH_NATS_PASSWORD": "x",
    "SYNTH_NATS_SEED": "x",
    "SYNTH_BLOB_URL": "s3://bucket",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AZURE_STORAGE_KEY": "x",
    "GOOGLE_APPLICATION_CREDENTIALS": "x",
    "OPENAI_API_KEY": "x",
    "ENVIRONMENT_API_KEY": "x",
    "DATABASE_URL": "x",
    "RANK": "3",
    "HF_TOKEN": "x",
    "VLLM_API_KEY": "x",
    "HTTPS_PROXY": "http://user:password@proxy",
}
OTHERS = {
    "PATH": "/bin",
    "HOME": "/",
    "LC_ALL": "C",
    "CUDA_VISIBLE_DEVICES": "0",
    "CUDNN_PATH": "/cudnn",
    "LD_LIBRARY_PATH": "/lib",
    "NCCL_DEBUG": "INFO",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/cache",
    "PYTORCH_CUDA_ALLOC_CONF": "x",
    "PYTHONPATH": "/shared",
    "HF_HOME": "/hub",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CACHE_ROOT": "/cache",
    "http_proxy": "http://proxy:3128",
}


def test_a_child_has_what_libraries_read_and_no_key():
    assert child_environment(KEYS | OTHERS) == OTHERS


def test_the_operator_passes_further_variables_on():
    more = {"SYNTH_PASSED_ENVIRONMENT": "ACME_TABLE, ACME_KEY"}
    given = KEYS | OTHERS | more | {"ACME_TABLE": "a", "ACME_KEY": "b", "ACME_OTHER": "c"}
    assert child_environment(given) == OTHERS | more | {"ACME_TABLE": "a", "ACME_KEY": "b"}
    # A child that starts further ones passes the same on.
    assert child_environment(child_environment(given)) == child_environment(given)


def test_what_a_process_withholds_is_gone_from_its_own_environment():
    own = KEYS | OTHERS
    withhold_environment(own, keep=frozenset({"HF_TOKEN"}))
    assert own == OTHERS | {"HF_TOKEN": "x"}


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() == 0, reason="root reads the memory of every process")
def test_a_process_that_hides_its_memory_shows_no_first_environment_to_its_user():
    source = (
        "from synth.runtime.environment.child_environment import hide_memory; hide_memory(); print(flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source], env=os.environ | {"KEY": "x"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(PermissionError):
            Path(f"/proc/{process.pid}/environ").read_bytes()
        process.communicate(b"\n")


#: Imported by every interpreter that finds it on PYTHONPATH.
_REPORTER = """
import os
names = " ".join(name for name, value in os.environ.items() if value == "a-key-of-the-service")
open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.names"), "w").write(names)
"""


async def _read_parquet(folder: Path) -> None:
    (folder / "rows.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ParquetUnreadable):
        async for _ in read_parquet(folder / "rows.parquet", memory_bytes=1 << 30, most_bytes=1 << 20, sandbox=None):
            pass


async def _render_rows(folder: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"no row\n"

    source = TemplateSource({"default": "{{ messages }}"}, {}, [])
    options = RenderOptions(source=source, kind="prompts", sees=False, images=0, day=date(2026, 1, 1))
    assert await render_rows(pieces(), options)


@pytest.mark.parametrize("start", [_read_parquet, _render_rows])
async def test_a_process_that_decodes_users_bytes_has_no_key_of_its_service(
    start: Callable[[Path], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYNTH_CLUSTER_SECRET", "a-key-of-the-service")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-key-of-the-service")
    (tmp_path / "sitecustomize.py").write_text(_REPORTER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    await start(tmp_path)
    (report,) = tmp_path.glob("*.names")
    assert report.read_text() == ""
