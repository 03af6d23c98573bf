"""Thousands of hostile inputs at a real platform: none may hurt it, and none may hurt another organisation.

.venv/bin/python -m tests.soak.hostile [--inputs 10000] [--seed 0] [--only KIND] [--costs] [--folder DIR]

Exit code 1: something was broken. What must hold: no status 5xx but a 503 with Retry-After; every input is decided
within a deadline; no service ends, is unwell, or grows by 200 MB; nothing but what the operator allowed is connected
to; no message is given up but those that came from a stolen credential; and the median answer to another organisation
takes at most twice as long as before, more by as much as a sum of numbers takes longer on a busy machine; after each
attack a good file of theirs is checked, and a good job verified.

The attacks by cost send one request at a time, each at the limits of the settings. While they do, no process may grow
by 300 MB, no median may take three times as long, and no event loop may stand still for 200 ms by its own doing. They
need a machine that does nothing else. The row of two busy processes shows what such a machine costs by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from synth.bus.replay import replay_messages
from synth.bus.server.topology import DEAD
from tests.soak.hostile.attacks import HOSTILE, Ring, steal_credentials, storm
from tests.soak.hostile.costs.attacks import COSTS
from tests.soak.hostile.gaps import Gaps, longest, read_gaps
from tests.soak.hostile.job_texts import GOOD_JOB
from tests.soak.hostile.quiet import REFERENCE, Quiet, start_quiet
from tests.soak.hostile.servers import ALLOWED, hostile_server, trap
from tests.soak.hostile.target import Target, post, target, upload
from tests.soak.waiting import until

ATTACKS = HOSTILE | COSTS
_INPUT_S = 120.0
_QUIET_S = 10.0
_AFTER_S = 180.0
#: How long an attack by cost lasts at least.
_LEAST_S = 8.0
#: Of the inputs of each kind, before memory is looked at: pools are filled and caches made.
_WARM_UP = 0.1
_GOOD_ROW = b'{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "%d"}]}\n'
console = Console(width=160)


async def run(folder: Path, kinds: list[str], inputs: int, seed: int) -> list[str]:
    """Attack in every way, one after the other; returns what was broken. Each environment has a platform of its own."""
    table = Table(
        "inputs", "", "seconds", "quiet median ms", "times", "machine", "growth MB", "loop gap ms", "own ms", "answers"
    )
    environments: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for kind in kinds:
        environments.setdefault(tuple(ATTACKS[kind].environment.items()), []).append(kind)
    each = -(-inputs // max(1, sum(ATTACKS[kind].prepare is None for kind in kinds)))
    found: list[str] = []
    for i, (environment, alike) in enumerate(environments.items()):
        (place := folder / str(i)).mkdir(exist_ok=True)
        found += await _run_on_one(place, alike, dict(environment), each, seed, table)
    console.print(table)
    return found


async def _run_on_one(
    folder: Path, kinds: list[str], environment: dict[str, str], inputs: int, seed: int, table: Table
) -> list[str]:
    rng = random.Random(seed)
    found: list[str] = []
    async with AsyncExitStack() as closing:
        services = list(dict.fromkeys(["gateway", "files", *(s for kind in kinds for s in ATTACKS[kind].services)]))
        attacked = await closing.enter_async_context(target(folder, services, environment))
        trapped = await closing.enter_async_context(trap())
        server = await closing.enter_async_context(hostile_server(random.Random(seed + 1), trapped.port))
        headers = {"Authorization": f"Bearer {attacked.key}"}
        http = httpx.AsyncClient(base_url=attacked.url, headers=headers, timeout=_INPUT_S, trust_env=False)
        ring = Ring(attacked, await closing.enter_async_context(http), server, trapped, rng)
        await steal_credentials(ring, closing)
        quiet = start_quiet(attacked, services, folder / "quiet.txt")
        closing.callback(quiet.process.wait, 10)
        closing.callback(quiet.process.kill)
        console.print("the platform is up; another organisation asks, and nobody attacks")
        before = await _medians_undisturbed(quiet)
        console.print(f"its median answers take {_in_ms(before)} ms")
        table.add_row("none", "", f"{_QUIET_S:.0f}", _in_ms(before))
        for kind in kinds:
            found += await _attack(ring, quiet, kind, inputs, before, table)
        reached = [address for address in trapped.caught if address != ALLOWED]
        found += [f"connected to {address}, which nobody had allowed" for address in reached]
        found += _given_back_for_ever(ring.target)
        _show_errors(ring.target)
        console.print(f"{server.answers} answers of task apps and image servers")
    return found


async def _medians_undisturbed(quiet: Quiet) -> dict[str, float]:
    # Behind the first requests, which open connections, start worker processes and load the model.
    async def has_all_answers() -> bool:
        return len(quiet.medians_s(0)) == len(quiet.questions)

    await until(has_all_answers, seconds=_AFTER_S, what="the quiet organisation has every answer")
    await asyncio.sleep(3)
    since = time.time()
    await asyncio.sleep(_QUIET_S)
    return quiet.medians_s(since)


def _in_ms(medians: Mapping[str, float]) -> str:
    return ", ".join(f"{path.rpartition('/')[2]} {seconds * 1e3:.1f}" for path, seconds in medians.items())


async def _attack(
    ring: Ring, quiet: Quiet, kind: str, inputs: int, before: Mapping[str, float], table: Table
) -> list[str]:
    attack, told = ATTACKS[kind], 0.0

    def say(sent: int) -> None:
        nonlocal told
        if time.time() - told > 15:
            told = time.time()
            console.print(f"[dim]{time.strftime('%H:%M:%S')}  {kind}: {sent} of {inputs}")

    ring.known.clear()
    if attack.prepare is not None:
        inputs = await attack.prepare(ring)
    begun = time.time()
    warm_up = int(inputs * _WARM_UP)
    gaps = await read_gaps(ring.target.ports)
    decisions: Counter[str] = Counter()
    ring.note = _print_inputs(ring.target, dict(gaps), decisions)
    wrong = await storm(ring, attack, warm_up, deadline_s=_INPUT_S, say=lambda sent: None)
    memory, sizes = ring.target.memory(), ring.target.memory_of_processes()
    wrong += await storm(ring, attack, inputs - warm_up, deadline_s=_INPUT_S, say=say)
    while attack.prepare is not None and time.time() < begun + _LEAST_S:
        # A median of a few answers says little.
        inputs += (more := await attack.prepare(ring))
        wrong += await storm(ring, attack, more, deadline_s=_INPUT_S, say=say)
    grown = {name: size - memory[name] for name, size in ring.target.memory().items()}
    if attack.most_gap_s is not None:
        # A process that was started since has grown from nothing.
        alone = ring.target.memory_of_processes().items()
        grown = {f"{name} {pid}": size - sizes.get((name, pid), 0) for (name, pid), size in alone}
    stood = longest(gaps, await read_gaps(ring.target.ports))
    medians = quiet.medians_s(begun)
    slower = {path: medians.get(path, math.inf) / seconds for path, seconds in before.items()}
    most = max(grown, key=lambda name: grown[name])
    still = max(stood, key=lambda name: stood[name][1])
    times = max(times for path, times in slower.items() if path != REFERENCE)
    row = (
        *(kind, str(inputs), f"{time.time() - begun:.0f}", _in_ms(medians), f"{times:.1f}", f"{slower[REFERENCE]:.1f}"),
        *(f"{most} {grown[most] / 1e6:.0f}", f"{max(wall for wall, _ in stood.values()) * 1e3:.0f}"),
        f"{still} {stood[still][1] * 1e3:.0f}",
        ", ".join(f"{count} × {decided}" for decided, count in sorted(decisions.items())),
    )
    table.add_row(*row)
    console.print("  ".join(row))
    console.print("own gaps: " + ", ".join(f"{name} {own * 1e3:.0f}" for name, (_, own) in stood.items()))
    found = [f"{kind}: {what}" for what in wrong]
    found += [f"{kind}: {name} grew by {size >> 20} MB" for name, size in grown.items() if size > attack.most_growth]
    found += [f"{kind}: the quiet organisation's request: {what}" for what in quiet.failures(begun)]
    # A busy machine makes everything slower, also what is not attacked. One request at a time leaves it time.
    machine, reference = 1.0, slower.pop(REFERENCE)
    if attack.prepare is None:
        machine = max(machine, reference)
    for path, times in slower.items():
        if times > attack.most_slower * machine:
            found.append(f"{kind}: the quiet organisation waits {times:.1f} times as long for {path}")
    for name, (_, own) in stood.items():
        if attack.most_gap_s is not None and own > attack.most_gap_s:
            found.append(f"{kind}: the event loop of {name} stood still for up to {own:g} s by its own doing")
    found += [f"{kind}: {what}" for what in await ring.target.ill()]
    found += [f"{kind}: {what}" for what in await _works_for_another(ring.target)]
    if kind != "bus messages":
        found += [f"{kind}: {what}" for what in await _dead_letters(ring.target)]
    return found


def _print_inputs(
    attacked: Target, gaps: dict[str, Gaps], decisions: Counter[str]
) -> Callable[[str, str, float], Awaitable[None]]:
    """Print of each input what it took, and the longest gap of each loop while it was decided; count the decisions."""

    async def note(name: str, decided: str, seconds: float) -> None:
        now = await read_gaps(attacked.ports)
        stood = longest(gaps, now).items()
        gaps.update(now)
        decisions[decided.split()[0]] += 1
        took = "  ".join(f"{service} {wall * 1e3:.0f}/{own * 1e3:.0f}" for service, (wall, own) in stood)
        console.print(f"  {name}: {seconds:.1f} s  {took}  {decided}"[:300], markup=False, highlight=False)

    return note


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
                reply = await post(http, "/api/jobs", {"config": GOOD_JOB % file})
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
    options.add_argument("--inputs", type=int, default=10_000, help="of all kinds together, beside the attacks by cost")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=list(ATTACKS), action="append", help="this kind alone; repeatable")
    options.add_argument("--folder", type=Path, help="of the platform's data and logs; kept")
    options.add_argument(
        "--costs", action="store_true", help="the attacks by cost alone: on an idle machine, 6 minutes"
    )
    chosen = options.parse_args()
    kinds = chosen.only or list(COSTS if chosen.costs else ATTACKS)
    with tempfile.TemporaryDirectory(prefix="hostile") as temporary:
        folder = (chosen.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(run(folder, kinds, chosen.inputs, chosen.seed))
    for what in found[:200]:
        console.print(what, soft_wrap=True, markup=False)
    console.print(f"{len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
