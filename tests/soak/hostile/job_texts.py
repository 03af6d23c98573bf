"""Job files that no friend would submit: seeded, by spoiling good ones and from nothing."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from tests.soak.hostile.target import MODEL
from tests.soak.hostile.values import RAW_NUMBERS, spoil, text, value

_ROOT = Path(__file__).parents[3]
_GOOD = tuple((_ROOT / "configs" / "demo" / f"{name}.toml").read_text() for name in ("rl", "sft", "eval"))
#: A job that is verified, on a file.
GOOD_JOB = f"""
[algorithm]
type = "offline"
method = "sft"
variety = "fft"
[job]
model = "{MODEL}"
data = "%s"
[training]
mode = "full_finetune"
[hyperparameters]
total_steps = 1
sequence_length = 64
"""
_KEY = re.compile(r"^(\w+) = .*$", re.MULTILINE)
_VALUES = (
    '"0-99999999999999999999"',
    '"0-9,"',
    "[" + "1," * 20_000 + "]",
    "1979-05-27T07:32:00Z",
    "inf",
    "-nan",
    "0xffffffffffffffffffff",
    "'''\n'''",
    '"\\u0000"',
    '"\\U0010ffff"',
    '"http://127.0.0.1:22/"',
    '"http://169.254.169.254/latest/"',
    '"file:///etc/passwd"',
    '"rl:a:job_0:step_99999999999999999999"',
    '"/etc/passwd"',
    '"../../secrets"',
    "{ start = -1, count = 9223372036854775807 }",
    "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]",
    "true",
)


def job_text(rng: random.Random) -> str:
    """The text of a job file."""
    return rng.choice((_other_value, _other_value, _other_bytes, _other_tables, _deep, _wide, _another_language))(rng)


def _other_value(rng: random.Random) -> str:
    """Some values of a good file are other ones."""
    made = rng.choice(_GOOD)
    for _ in range(rng.randint(1, 4)):
        key = rng.choice(_KEY.findall(made) or ["seed"])
        put = f"{key} = {_value(rng)}"
        made = re.sub(rf"^{re.escape(key)} = .*$", lambda _, line=put: line, made, count=1, flags=re.MULTILINE)
    return made


def _value(rng: random.Random) -> str:
    match rng.randrange(3):
        case 0:
            return rng.choice(_VALUES)
        case 1:
            return rng.choice(RAW_NUMBERS)
        case _:
            return json.dumps(value(rng, 2))


def _other_bytes(rng: random.Random) -> str:
    return spoil(rng, rng.choice(_GOOD).encode()).decode("utf-8", "replace")


def _other_tables(rng: random.Random) -> str:
    """A good file with tables and keys that it should not have, or has twice."""
    tables = re.findall(r"^\[[^\]]+\]", made := rng.choice(_GOOD), re.MULTILINE)
    name = rng.choice([*tables, "[[rollout]]", "[a.b.c.d]", f"[{json.dumps(text(rng))}]", "[judge]", "[plugins]"])
    lines = [f"{json.dumps(text(rng))} = {_value(rng)}" for _ in range(rng.randint(1, 5))]
    return f"{made}\n{name}\n" + "\n".join(lines) + "\n"


def _deep(rng: random.Random) -> str:
    n = rng.choice((100, 3_000, 30_000))
    return rng.choice(
        (
            "a" + ".a" * n + " = 1",
            "a = " + "[" * n + "]" * n,
            "a = " + "{b = " * n,
            "[" + "a." * n + "a]",
            "[[a]]\n" * n,
            "[rollout.env_config]\n" + "\n".join(f"a{'.a' * i} = 1" for i in range(min(n, 300))),
        )
    )


def _wide(rng: random.Random) -> str:
    n = rng.choice((1_000, 8_000))
    return rng.choice(
        (
            "[tags]\n" + "".join(f"t{i} = 1\n" for i in range(n)),
            "[rollout]\nops = [" + '"",' * n + "]",
            "[rollout.env_config]\n" + "".join(f"{'k' * 20}{i} = '{'v' * 20}'\n" for i in range(n // 4)),
            "".join(f"[t{i}]\n" for i in range(n)),
            'a = {"' + " " * n + '"=1, "' + " " * n + '"=1}',
            "a = '''" + "'" * n,
            "a = " + "9" * n,
        )
    )


def _another_language(rng: random.Random) -> str:
    body = json.dumps(value(rng))
    return rng.choice((body, "\ufeff" + rng.choice(_GOOD), "<?xml version='1.0'?>", "- a: &x [*x]", "\x00" * 100, ""))
