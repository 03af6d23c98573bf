"""The main job on this machine, by the commands that a user would type: SFT, then RL from its model, judged on
problems that neither has seen. Ends with a table, the reward curve, and `.synth/demo/report.json`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from demo.charts import print_curve, print_result, save_curve
from demo.session import Demo, cluster, make_dataset, task_app

_TASK_PORT = 8001


def main() -> int:
    """`python -m demo.run`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--install-seconds", type=float, default=0.0, help="how long the installation took")
    arguments = parser.parse_args()
    demo = Demo(arguments.seed, arguments.engine, Path(".synth/demo"), "configs/demo/eval.toml")
    demo.seconds["install"] = arguments.install_seconds
    code = demo.run(lambda: story(demo, arguments.port))
    if code == 0:
        report(demo)
    return code


def story(demo: Demo, port: int) -> None:
    """From nothing to a model that learned."""
    seed = ("--seed", str(demo.seed))
    dataset = make_dataset(demo, "math", 16_000)
    # vLLM's attention has no heads as narrow as those of the tiny model.
    wide = ("--head-dim", "32") if demo.engine == "vllm" else ()
    demo.synthctl("models", "make", "tiny-qwen3", "--replace", *seed, *wide, show=True)
    with cluster(demo, port), task_app(demo, "math", _TASK_PORT) as url:
        demo.evaluate("base", "tiny-qwen3", url)
        sft = demo.submit("sft", "configs/demo/sft.toml", "--dataset", str(dataset), *seed)
        demo.evaluate("sft", sft, url)
        rl = demo.submit("rl", "configs/demo/rl.toml", "--model", sft, "--task-url", url, *seed)
        demo.evaluate("rl", rl, url)
        demo.read_curves()
        demo.synthctl("chat", rl, "-m", "What is 58 + 67?", "--temperature", "0", show=True)


def report(demo: Demo) -> None:
    """The table, the curve on the screen and as a PNG, and the figures as JSON."""
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


if __name__ == "__main__":
    sys.exit(main())
