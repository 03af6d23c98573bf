"""Job files that cost much to read, each of nearly `MAX_CONFIG_BYTES`."""

from __future__ import annotations

import json
import random
from pathlib import Path

from synth.api.limits import MAX_CONFIG_BYTES, MAX_METADATA_BYTES

_GOOD = (Path(__file__).parents[4] / "configs" / "demo" / "sft.toml").read_text()

Case = tuple[str, str]
"""What costs, and the text of the job file."""


def costly_job_files(rng: random.Random) -> list[Case]:
    """Job files with many keys, deep and wide tables, long strings, and data inside."""
    size = MAX_CONFIG_BYTES - len(json.dumps(_GOOD)) - 100
    salt = f"k{rng.randrange(1 << 40):x}"
    row = json.dumps({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]})

    def many(piece: str, share: float = 1) -> str:
        # Its size is counted as JSON.
        return piece * int(share * size / (len(json.dumps(piece)) - 2))

    def numbered(piece: str) -> str:
        each = len(json.dumps(piece.replace("#", f"{salt}000000"))) - 2
        return "".join(piece.replace("#", f"{salt}{i:06}") for i in range(size // each))

    texts = {
        "keys": "[tags]\n" + numbered("# = 1\n"),
        "unknown keys": "[training]\n" + numbered("# = 1\n"),
        "tables": numbered("[#]\n"),
        "tables of a list": many("[[a]]\n"),
        "dotted keys": "a" + many(".a") + " = 1\n",
        "many dotted keys": "[rollout.env_config]\n" + numbered("a" + ".a" * 60 + ".# = 1\n"),
        "a dotted table": "[" + many("a.") + "a]\n",
        "lists in one another": "a = " + many("[", 0.5) + many("]", 0.5) + "\n",
        "tables in one another": "a = " + many("{b = ") + "\n",
        "a list": "[rollout]\nops = [" + many("0,") + "]\n",
        "a list of lists": "[rollout.env_config]\na = [" + many("[],") + "]\n",
        "inline tables": "a = [" + many("{b=1},") + "]\n",
        "a long string": f"[tags]\n{salt} = '{many('x')}'\n",
        "escapes": f'[tags]\n{salt} = "' + many("\\u00e9") + '"\n',
        "many lines of a string": f"[tags]\n{salt} = '''" + many("\n") + "'''\n",
        "a long number": "a = " + many("9") + "\n",
        "numbers": "a = [" + many("1e9,") + "]\n",
        "times": "a = [" + many("1979-05-27T07:32:00Z,") + "]\n",
        "comments": many("#\n"),
        "spaces": "a =" + many(" ") + "1\n",
        "an open string": "a = '''" + many("'"),
        "a dataset": "[data]\nrows = [" + many("'''" + row + "''',") + "]\n",
    }
    broken = {"no TOML": many("["), "a long line": many("a")}
    return [(name, f"{_GOOD}\n{text}") for name, text in texts.items()] + list(broken.items())


def metadata(rng: random.Random) -> dict[str, str]:
    """Metadata of nearly the largest size."""
    return {f"m{rng.randrange(1 << 40):x}{i}": "v" * 200 for i in range(MAX_METADATA_BYTES // 260)}
