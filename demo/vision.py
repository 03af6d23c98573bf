"""Vision on this machine: a tiny Qwen3-VL learns to look. SFT on pictures, then GSPO on a task that text alone cannot
do, judged on pictures that neither has seen, and on blank ones. With --blank, all of it on pictures without a square.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from synth.cli.demo.charts import print_curve, print_result, save_curve
from synth.cli.demo.session import Demo, cluster, make_dataset, task_app

_BLANK = ("--set", "eval.env_config.blank=true")


def main() -> int:
    """`python -m demo.vision`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--blank", action="store_true", help="train on pictures that show nothing")
    arguments = parser.parse_args()
    out = Path(".synth/demo-blank" if arguments.blank else ".synth/demo-vision")
    demo = Demo(arguments.seed, arguments.engine, out, "configs/colours/eval.toml")
    code = demo.run(lambda: story(demo, arguments.port, blank=arguments.blank))
    if code == 0:
        report(demo)
    return code


def story(demo: Demo, port: int, *, blank: bool) -> None:
    """Train a model that has seen no picture, until it names the shapes in pictures."""
    seed = ("--seed", str(demo.seed))
    dataset = make_dataset(demo, "task_apps.colours", 4_000, *(["--blank"] if blank else []))
    # vLLM has no attention on a CPU for heads that are narrower.
    wide = ("--head-dim", "32") if demo.engine == "vllm" else ()
    demo.synthctl("models", "make", "tiny-qwen3-vl", "--replace", *seed, *wide, show=True)
    blanked = _BLANK if blank else ()
    with cluster(demo, port), task_app(demo, "task_apps.colours") as url:
        sft = demo.submit("sft", "configs/colours/sft.toml", "--dataset", str(dataset), *seed)
        demo.evaluate("sft", sft, url, *blanked)
        env = ("--set", "rollout.env_config.blank=true") if blank else ()
        rl = demo.submit("rl", "configs/colours/rl.toml", "--model", sft, "--task-url", url, *seed, *env)
        demo.evaluate("rl", rl, url, *blanked)
        if not blank:
            demo.evaluate("blank", rl, url, *_BLANK)
        demo.read_curves()


def report(demo: Demo) -> None:
    """Print the table and the curve, and save the curve as a PNG and the figures as JSON."""
    save_curve(
        demo.reward,
        demo.evaluation,
        demo.out / "reward.png",
        title="GSPO on the Colours task app",
        reward_label="mean reward (share of right colours)",
        held_out="held-out pictures",
    )
    print_curve(demo.reward, demo.evaluation, held_out="held-out pictures")
    print_result(demo.accuracy, demo.seconds, title="256 held-out pictures, T = 1; by chance 0.25")
    demo.write_report()


if __name__ == "__main__":
    sys.exit(main())
