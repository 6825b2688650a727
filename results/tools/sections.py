"""The blocks of README.md and RESULTS.md as text, each from the JSON files in results/ and from nothing else."""

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
PLOTS = {
    "quality.png": "CIDEr-D of every system against its parameters and its training minutes",
    "curves.png": "CIDEr-D on dev after each epoch, a panel for each system",
    "losses.png": "Training and dev loss after each epoch, a panel for each system",
}


def readme(folder: Path) -> dict[str, str]:
    return {"table": systems(folder)}


def results(folder: Path) -> dict[str, str]:
    return {
        "table": systems(folder),
        "scores": scores(folder),
        "plots": plots(folder, ("quality.png",)),
        "curves": curves(folder),
        "samples": samples(folder),
        "runs": runs(folder),
        **experiment_sections.blocks(folder),
    }


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
        "Dev:",
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
        "dev loss",
        "per caption",
        "dev B4",
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
