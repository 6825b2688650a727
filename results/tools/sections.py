"""The generated blocks of README.md, RESULTS.md and results/*.md, made from the JSON files of results/ only.

Links are written as from the repository's root; ``table.py`` shortens them on pages inside results/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import experiment_sections
from markdown_table import NOTHING, escape, number, table
from rows import WEIGHTS_NEEDED, Row, read_json, read_rows, recipe_title, title
from sightline.data import read_results
from sightline.nn.checkpoint import checkpoint_hash
from sightline.nn.hub import DEFAULT_MODEL

LABELS = {
    "bleu_1": "B1", "bleu_2": "B2", "bleu_3": "B3", "bleu_4": "B4", "bleu_4_no_bp": "B4, no BP",
    "meteor": "METEOR", "rouge_l": "ROUGE-L", "cider": "CIDEr-D",
}  # fmt: skip
SHORT = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "bleu_4_no_bp", "meteor", "rouge_l")
PLAIN = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider")
README_ROWS = {
    "dinov2-scst": "DINOv2 ViT-S/14 + transformer, self-critical training",
    "tinyvit-scst": "TinyViT-5M + transformer, distilled from it",
    "sat-soft-resnet50": "Show, Attend and Tell, soft attention, ResNet-50",
    "sat-hard-vgg19": "Show, Attend and Tell, hard attention, VGG-19",
    "nic-resnet50": "CNN + LSTM, ResNet-50, no attention",
}
PLOTS = {
    "quality.png": "CIDEr-D of every system against its parameters and its training minutes",
    "curves.png": "CIDEr-D on val after each epoch, a panel for each system",
    "losses.png": "Training and val loss after each epoch, a panel for each system",
}


def blocks(folder: Path) -> dict[str, dict[str, str]]:
    """The generated text of every page: page, then block."""
    experiments = experiment_sections.blocks(folder)
    return {
        "README.md": {"best systems": best_systems(folder)},
        "RESULTS.md": {"systems": systems(folder), "plots": plots(folder, ("quality.png", "curves.png"))},
        "results/scores.md": {"scores": scores(folder), "curves": curves(folder)},
        "results/captions.md": {"samples": samples(folder)},
        "results/commands.md": {"runs": runs(folder)},
        "results/attention.md": _some(experiments, "attention", "attention against occlusion"),
        "results/experiments.md": _some(experiments, "gradient variance", "confidence"),
        "results/failures.md": _some(experiments, "failures"),
    }


def _some(blocks: dict[str, str], *names: str) -> dict[str, str]:
    return {name: blocks[name] for name in names}


def best_systems(folder: Path) -> str:
    """The README's table: one system of each kind."""
    rows = {name: row for name, row in read_rows(folder).items() if row.test and name in README_ROWS}
    default = checkpoint_hash(DEFAULT_MODEL)
    lines = []
    for name, row in rows.items():
        mark = "**" if row.checkpoint == default else ""
        what = README_ROWS[name] + (", the default model" if mark else "")
        scores = (number(row.test[key]) for key in ("bleu_4", "meteor", "cider"))
        lines.append([f"{mark}{what}{mark}", *scores, f"{row.parameters / 1e6:.1f} M"])
    return table(["system", "BLEU-4", "METEOR", "CIDEr-D", "parameters"], lines, left=1)


def systems(folder: Path) -> str:
    """One line per system, best first; then the recipes whose encoders we could not get."""
    rows = {name: row for name, row in read_rows(folder).items() if row.test}
    shipped = checkpoint_hash(DEFAULT_MODEL)
    lines = [_system(name, row, row.checkpoint == shipped) for name, row in rows.items()]
    done = {row.recipe for row in rows.values()}
    waiting = [recipe for recipe in WEIGHTS_NEEDED if recipe not in done]
    empty = [""] * (len(SHORT) + 2)
    lines += [[f"{recipe_title(recipe)} (`{recipe}`)", "weights needed", *empty] for recipe in waiting]
    head = ["system", *(LABELS[key] for key in SHORT), "CIDEr-D (95 %)", "parameters", "minutes"]
    return table(head, lines, left=1)


def _system(name: str, row: Row, shipped: bool) -> list[str]:
    link = f"[`{name}`](results/{name}.json)"
    what = f"**{escape(title(row))}** ({link}, the default model)" if shipped else f"{escape(title(row))} ({link})"
    cider = f"{number(row.test['cider'])} ({_range(row, 'cider')})"
    size, minutes = f"{row.parameters / 1e6:.1f} M", f"{row.train_minutes:.0f}"
    return [what, *(number(row.test[key]) for key in SHORT), cider, size, minutes]


def _range(row: Row, key: str) -> str:
    low, high = row.interval[key]
    return f"{number(low)}–{number(high)}"


def scores(folder: Path) -> str:
    """Every score of every row: test with intervals, test without brevity penalty, dev."""
    rows = read_rows(folder)
    tested = {name: row for name, row in rows.items() if row.test}
    bare = [f"bleu_{order}_no_bp" for order in range(1, 5)]
    parts = [
        "Test, with 95 % intervals:",
        _with_intervals(tested, PLAIN, [LABELS[key] for key in PLAIN]),
        "Test, BLEU without brevity penalty:",
        _with_intervals(tested, bare, ["B1", "B2", "B3", "B4"]),
        "Val:",
        table(
            ["system", *(LABELS[key] for key in PLAIN)],
            [[f"`{name}`", *(number(row.dev[key]) for key in PLAIN)] for name, row in rows.items()],
            left=1,
        ),
    ]
    return "\n\n".join(parts)


def _with_intervals(rows: dict[str, Row], keys: Sequence[str], labels: Sequence[str]) -> str:
    lines = [
        [f"`{name}`", *(f"{number(row.test[key])} ({_range(row, key)})" for key in keys)] for name, row in rows.items()
    ]
    return table(["system", *labels], lines, left=1)


def plots(folder: Path, names: Sequence[str]) -> str:
    shown = [f"![{PLOTS[name]}](results/plots/{name})" for name in names if (folder / "plots" / name).is_file()]
    return "\n\n".join(shown) or NOTHING


def curves(folder: Path) -> str:
    """Where each run stopped and what it kept, and the pictures of the way there."""
    lines = []
    for name in read_rows(folder):
        path = folder / f"{name}.curve.json"
        epochs = read_json(path)["epochs"] if path.is_file() else []
        kept = next((epoch for epoch in reversed(epochs) if epoch["best"]), None)
        if kept is not None:
            lines.append([f"[`{name}`](results/{name}.curve.json)", *_curve(epochs, kept)])
    if not lines:
        return NOTHING
    head = [
        "system",
        "epochs",
        "kept",
        "at minute",
        "train loss",
        "val loss",
        "per caption",
        "val B4",
        "CIDEr-D",
    ]
    pictures = plots(folder, ("curves.png", "losses.png"))
    return table(head, lines, left=1) + ("" if pictures == NOTHING else f"\n\n{pictures}")


def _curve(epochs: list[dict[str, Any]], kept: dict[str, Any]) -> list[str]:
    numbers = [(kept.get("train_nll", kept.get("train_loss")), 2), (kept.get("dev_nll"), 2)]
    numbers += [(kept.get("dev_nll_per_caption"), 1), (kept["dev"].get("bleu_4"), 1), (kept["dev"].get("cider"), 1)]
    return [
        str(len(epochs)), str(kept["epoch"]), f"{kept['minutes']:.0f}",
        *("" if value is None else number(value, digits) for value, digits in numbers),
    ]  # fmt: skip


def samples(folder: Path) -> str:
    """The same photos for every system, named by their files: the photos are not ours to show."""
    path = folder / "samples.json"
    people: dict[str, str] = read_json(path) if path.is_file() else {}
    captions = {
        name: read_results(folder / f"{name}.captions.json")
        for name, row in read_rows(folder).items()
        if row.test and (folder / f"{name}.captions.json").is_file()
    }
    parts = []
    for photo, person in people.items():
        lines = [["a person", escape(person.strip(" ."))]]
        lines += [[f"`{name}`", escape(found[photo])] for name, found in captions.items() if photo in found]
        parts.append(f"`{photo}`\n\n" + table(["system", "caption"], lines, left=2))
    return "\n\n".join(parts) or NOTHING


def runs(folder: Path) -> str:
    """How to make each row again."""
    parts = []
    for name, row in read_rows(folder).items():
        commands = "\n".join(f"    {command.strip()}" for command in row.command.split("&&"))
        note = f"\n\n{escape(row.note)}" if row.note else ""
        parts.append(
            f"`{name}`: commit {row.commit}, seed {row.seed}, {row.parameters:,} parameters "
            f"({row.trainable:,} trained), {row.train_minutes:g} minutes, `{row.signature}`\n\n{commands}{note}"
        )
    return "\n\n".join(parts) or NOTHING
