"""The results of a demo: the reward curve and the table."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from synth.cli.figures.drawing import Line, Panel, save_figure
from synth.cli.tui import output
from synth.cli.tui.curves import Curve, draw

_LABELS = {
    "base": "base model",
    "sft": "after SFT",
    "rl": "after RL (GSPO)",
    "blank": "after RL, shown blank pictures",
}


def save_curve(
    reward: list[float], evaluation: dict[int, float], path: Path, *, title: str, reward_label: str, held_out: str
) -> None:
    """Save the mean reward of each RL step, and of each evaluation by its step, as a PNG."""
    lines = [
        Line(range(1, len(reward) + 1), reward, "training"),
        Line(list(evaluation), list(evaluation.values()), held_out, marker="s"),
    ]
    save_figure([Panel(reward_label, lines, limits=(0, 1))], path, title=title, steps="RL step")


def print_curve(reward: list[float], evaluation: dict[int, float], *, held_out: str) -> None:
    """Print the same curves in the terminal."""
    curves = [
        Curve("t", range(1, len(reward) + 1), reward),
        Curve("H", list(evaluation), list(evaluation.values())),
    ]
    title = f"mean reward by RL step: t training, H {held_out}"
    output.out().out(draw(curves, title=title, width=76, height=16, colours=False), highlight=False)


def print_result(accuracy: dict[str, float], seconds: dict[str, float], *, title: str) -> None:
    """Print the accuracy before and after, and the seconds of each part."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    table.add_column("")
    for name, value in accuracy.items():
        table.add_row(_LABELS[name], f"{value:.3f}", "█" * round(value * 30))
    output.out().print(table)
    parts = "  ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    output.out().print(f"[dim]{parts}[/]", soft_wrap=True)
