"""The main job on this machine, by the commands that a user would type: SFT, then RL from its model, judged on
problems that neither has seen. Ends with a table, the reward curve, and `.synth/demo/report.json`.
"""

from __future__ import annotations

from pathlib import Path

from synth.cli.demo.charts import print_curve, print_result, save_curve
from synth.cli.demo.session import Demo, cluster, copy_job_files, make_dataset, task_app

_OUT = Path(".synth/demo")


def run(*, seed: int, port: int, engine: str) -> int:
    """Run the demo in the working directory; returns the exit code."""
    demo = Demo(seed, engine, _OUT, str(_OUT / "eval.toml"))
    code = demo.run(lambda: story(demo, port))
    if code == 0:
        report(demo)
    return code


def story(demo: Demo, port: int) -> None:
    """From nothing to a model that learned."""
    seed = ("--seed", str(demo.seed))
    copy_job_files(demo.out, "sft.toml", "rl.toml", "eval.toml")
    dataset = make_dataset(demo, "synth.demo.math", 16_000)
    # vLLM's attention does not support the narrow heads of the tiny model.
    wide = ("--head-dim", "32") if demo.engine == "vllm" else ()
    demo.synthctl("models", "make", "tiny-qwen3", "--replace", *seed, *wide, show=True)
    with cluster(demo, port), task_app(demo, "synth.demo.math") as url:
        demo.evaluate("base", "tiny-qwen3", url)
        sft = demo.submit("sft", str(demo.out / "sft.toml"), "--dataset", str(dataset), *seed)
        demo.evaluate("sft", sft, url)
        rl = demo.submit("rl", str(demo.out / "rl.toml"), "--model", sft, "--task-url", url, *seed)
        demo.evaluate("rl", rl, url)
        demo.read_curves()
        demo.synthctl("chat", rl, "-m", "What is 58 + 67?", "--temperature", "0", show=True)


def report(demo: Demo) -> None:
    """Print the table and the curve, and save the curve as a PNG and the figures as JSON."""
    save_curve(
        demo.reward,
        demo.evaluation,
        demo.out / "reward.png",
        title="GSPO on the Math task app",
        reward_label="mean reward (share of exact sums)",
        held_out="held-out sums",
    )
    print_curve(demo.reward, demo.evaluation, held_out="held-out sums")
    print_result(demo.accuracy, demo.seconds, title="512 held-out problems, T = 1")
    demo.write_report()
