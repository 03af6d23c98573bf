"""The environment of a service's child processes: a list of variables that may pass, and never a key.

Children decode bytes of users, or run code of libraries on them. A process that an attacker has taken over must not
hold a key of the service.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping, MutableMapping

#: Names of more variables that children have, separated by commas.
PASSED_ENVIRONMENT = "SYNTH_PASSED_ENVIRONMENT"

_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "TEMP", "TMP", "HOSTNAME"),
        *("LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "NO_COLOR"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "CC", "CXX", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "USE_HUB_KERNELS"),
        PASSED_ENVIRONMENT,
    }
)
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
#: Of the interpreter, the C library, GPUs and their libraries, threads, and libraries that train and sample.
_PREFIXES = (
    *("LC_", "XDG_", "PYTHON", "MALLOC_", "GLIBC_", "JEMALLOC_"),
    *("CUDA", "CUDNN_", "CUBLAS", "NVIDIA_", "NVTE_", "NCCL_", "GLOO_", "UCX_", "FI_", "ROCR_", "HIP_", "HSA_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "DNNL_", "ONEDNN_", "ATEN_"),
    *("TORCH", "PYTORCH_", "TRITON_", "INDUCTOR_", "VLLM_", "FLASHINFER_", "FLASH_", "BNB_", "BITSANDBYTES_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "SAFETENSORS_", "ARROW_", "RAYON_", "RUST_"),
)
_SECRET = re.compile(r"(^|_)(TOKEN|KEY|KEYS|SECRET|SECRETS|PASSWORD|PASS|CREDENTIAL|CREDENTIALS|AUTH)(_|$)")
_DUMPABLE = 4


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a child process. environment: the parent's; None for this process.

    A name of a secret is withheld unless the operator passes it on by `SYNTH_PASSED_ENVIRONMENT`; a proxy whose address
    has a password is withheld.
    """
    inherited = os.environ if environment is None else environment
    passed = {name.strip() for name in inherited.get(PASSED_ENVIRONMENT, "").split(",")}
    return {name: value for name, value in inherited.items() if name in passed or _passes(name, value)}


def _passes(name: str, value: str) -> bool:
    if name.upper() in _PROXIES:
        return "@" not in value
    return name in _NAMES or (name.startswith(_PREFIXES) and not _SECRET.search(name))


def withhold_environment(environment: MutableMapping[str, str] = os.environ, *, keep: frozenset[str]) -> None:
    """Remove from this process's own environment the variables that its children must not have.

    Libraries start processes that inherit it. Call it when the settings and the blob store's keys have been read. keep:
    names that a library of this process reads later.
    """
    allowed = child_environment(environment)
    for name in list(environment):
        if name not in allowed and name not in keep:
            del environment[name]


def hide_memory() -> None:
    """Make the kernel refuse other processes of the same user this one's memory and first environment (Linux).

    Neither `/proc/PID/environ` nor `/proc/PID/mem` nor ptrace then shows a key to a process that a user has taken over.
    Root can read it still. No core is dumped.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
