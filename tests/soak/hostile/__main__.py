"""Thousands of hostile inputs at a real platform: none may hurt it, and none may hurt another organisation.

.venv/bin/python -m tests.soak.hostile [--inputs 10000] [--seed 0] [--only KIND] [--folder DIR]

Exit code 1: something was broken. What must hold: no status 5xx but a 503 with Retry-After; every input is decided
within a deadline; no service ends, is unwell, or grows by 200 MB; nothing but what the operator allowed is connected
to; no message is given up but those that came from a stolen credential; and the median answer to another organisation
takes at most twice as long as before; after each attack a good file of theirs is checked, and a good job verified.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from synth.bus.replay import replay_messages
from synth.bus.server.topology import DEAD
from tests.soak.hostile.attacks import ATTACKS, Ring, steal_credentials, storm
from tests.soak.hostile.quiet import Quiet, start_quiet
from tests.soak.hostile.servers import ALLOWED, hostile_server, trap
from tests.soak.hostile.target import MODEL, Target, post, target, upload

_MOST_GROWTH = 200 << 20
_MOST_SLOWER = 2.0
_INPUT_S = 120.0
_QUIET_S = 15.0
_AFTER_S = 180.0
#: Of the inputs of each kind, before memory is looked at: pools are filled and caches made.
_WARM_UP = 0.1
_GOOD_ROW = b'{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "%d"}]}\n'
_GOOD_JOB = f"""
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

console = Console(width=160)


async def run(folder: Path, kinds: list[str], inputs: int, seed: int) -> list[str]:
    """Attack in every way, one after the other; returns what was broken."""
    rng = random.Random(seed)
    table = Table("inputs", "", "seconds", "quiet median ms", "growth MB")
    found: list[str] = []
    async with AsyncExitStack() as closing:
        services = list(dict.fromkeys(["gateway", "files", *(s for kind in kinds for s in ATTACKS[kind].services)]))
        attacked = await closing.enter_async_context(target(folder, services))
        trapped = await closing.enter_async_context(trap())
        server = await closing.enter_async_context(hostile_server(random.Random(seed + 1), trapped.port))
        headers = {"Authorization": f"Bearer {attacked.key}"}
        http = httpx.AsyncClient(base_url=attacked.url, headers=headers, timeout=_INPUT_S, trust_env=False)
        ring = Ring(attacked, await closing.enter_async_context(http), server, trapped, rng)
        await steal_credentials(ring, closing)
        quiet = start_quiet(attacked.url, attacked.quiet_key, folder / "quiet.txt")
        closing.callback(quiet.process.wait, 10)
        closing.callback(quiet.process.kill)
        console.print("the platform is up; another organisation asks, and nobody attacks")
        before = await _median_undisturbed(quiet)
        console.print(f"its median answer takes {before * 1e3:.1f} ms")
        table.add_row("none", "", f"{_QUIET_S:.0f}", f"{before * 1e3:.1f}", "")
        for kind in kinds:
            found += await _attack(ring, quiet, kind, -(-inputs // len(kinds)), before, table)
        reached = [address for address in trapped.caught if address != ALLOWED]
        found += [f"connected to {address}, which nobody had allowed" for address in reached]
        found += _given_back_for_ever(ring.target)
        _show_errors(ring.target)
        console.print(f"{server.answers} answers of task apps and image servers")
    console.print(table)
    return found


async def _median_undisturbed(quiet: Quiet) -> float:
    # Behind the first requests, which open connections.
    await asyncio.sleep(3)
    since = time.time()
    await asyncio.sleep(_QUIET_S)
    median = quiet.median_s(since)
    assert median is not None, "the quiet organisation had no answer"
    return median


async def _attack(ring: Ring, quiet: Quiet, kind: str, inputs: int, before: float, table: Table) -> list[str]:
    attack, begun, told = ATTACKS[kind], time.time(), 0.0

    def say(sent: int) -> None:
        nonlocal told
        if time.time() - told > 15:
            told = time.time()
            console.print(f"[dim]{time.strftime('%H:%M:%S')}  {kind}: {sent} of {inputs}")

    warm_up = int(inputs * _WARM_UP)
    wrong = await storm(ring, attack, warm_up, deadline_s=_INPUT_S, say=lambda sent: None)
    memory = ring.target.memory()
    wrong += await storm(ring, attack, inputs - warm_up, deadline_s=_INPUT_S, say=say)
    grown = {name: size - memory[name] for name, size in ring.target.memory().items()}
    median = quiet.median_s(begun)
    most = max(grown, key=lambda name: grown[name])
    seconds, waits = f"{time.time() - begun:.0f}", f"{(median or 0) * 1e3:.1f}"
    row = (kind, str(inputs), seconds, waits, f"{most} {grown[most] / 1e6:.0f}")
    table.add_row(*row)
    console.print("  ".join(row))
    found = [f"{kind}: {what}" for what in wrong]
    found += [f"{kind}: {name} grew by {size >> 20} MB" for name, size in grown.items() if size > _MOST_GROWTH]
    found += [f"{kind}: the quiet organisation's request: {status}" for status in quiet.failures(begun)]
    if median is None or median > _MOST_SLOWER * before:
        found.append(f"{kind}: the quiet organisation waits {median} s, {before:.4f} s before")
    found += [f"{kind}: {what}" for what in await ring.target.ill()]
    found += [f"{kind}: {what}" for what in await _works_for_another(ring.target)]
    if kind != "bus messages":
        found += [f"{kind}: {what}" for what in await _dead_letters(ring.target)]
    return found


async def _dead_letters(attacked: Target) -> list[str]:
    letters = await replay_messages(attacked.admin.nc, ["dead.>"], stream=DEAD)
    return [f"dead letter {m.subject}: {(m.headers or {}).get('Synth-Reason', '')}" for m in letters]


async def _works_for_another(attacked: Target) -> list[str]:
    """What does not get done for an organisation that attacks nobody: a good file is ready, and a job on it verified.

    Every queue that the attacked services share is taken from for it.
    """
    headers = {"Authorization": f"Bearer {attacked.quiet_key}"}
    begun, doing = time.time(), "a good file is checked"
    try:
        async with (
            asyncio.timeout(_AFTER_S),
            httpx.AsyncClient(base_url=attacked.url, headers=headers, timeout=_INPUT_S, trust_env=False) as http,
        ):
            reply = await upload(http, "good.jsonl", _GOOD_ROW % random.randrange(1 << 30))
            file = str(reply.json()["id"])
            if (end := (await attacked.end_of(file)).type) != "file.ready":
                return [f"another organisation's good file is {end}"]
            if {"validator", "verifier"} <= attacked.processes.keys():
                doing = "a good job is verified"
                reply = await post(http, "/api/jobs", {"config": _GOOD_JOB % file})
                if (end := await attacked.verified_or_ended(str(reply.json()["id"]))) != "job.verified":
                    return [f"another organisation's good job is {end}"]
    except TimeoutError:
        return [f"another organisation waits for {_AFTER_S:.0f} s until {doing}"]
    console.print(f"[dim]another organisation's file and job took {time.time() - begun:.1f} s afterwards")
    return []


def _given_back_for_ever(attacked: Target) -> list[str]:
    """The messages that a service could neither handle nor give up: they come back until it can."""
    said = ("cannot bury a message yet", "delivery failed, it comes back by itself")
    lines = [(name, line) for name, its in attacked.errors().items() for line in its]
    return [f"{name}: {line[:300]}" for name, line in lines if any(words in line for words in said)]


def _show_errors(attacked: Target) -> None:
    for name, lines in attacked.errors().items():
        console.print(f"{name}: {len(lines)} errors logged")
        for line in lines[:3]:
            console.print(f"[dim]  {line[:300]}", markup=False)


def main() -> int:
    """Attack, and print what was broken; exit code 1 where something was."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=10_000, help="of all kinds together")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=list(ATTACKS), action="append", help="this kind alone; repeatable")
    options.add_argument("--folder", type=Path, help="of the platform's data and logs; kept")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile") as temporary:
        folder = (chosen.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(run(folder, chosen.only or list(ATTACKS), chosen.inputs, chosen.seed))
    for what in found[:200]:
        console.print(what, soft_wrap=True, markup=False)
    console.print(f"{len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
