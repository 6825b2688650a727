"""Bring README.md, RESULTS.md and the pages in results/ up to date with the JSON files in results/.

    python results/tools/table.py            write the pages
    python results/tools/table.py --check    only report which page is out of date, with exit code 1

A page holds blocks between `<!-- results: NAME -->` and `<!-- end of results: NAME -->`. Everything between is made
anew from the JSON files; everything outside is people's text and is never touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import experiment_sections
from rows import WITHOUT_ROW, Row, read_json, read_rows, title
from script import NOTHING, RESULTS, ROOT, escape, number, parser, run, table
from sightline.data import read_results
from sightline.errors import DataError
from sightline.io.files import printable, write_atomically
from sightline.nn.checkpoint import checkpoint_hash
from sightline.nn.hub import DEFAULT_MODEL
from sightline.recipes.plans import PLANS, SCORES, Paths, load_plans, steps
from sightline.tokenizers.base import split_words
from sightline.types import METRIC_NAMES

LABELS = {  # short: the tables have many columns
    key: name.replace("BLEU-", "B").replace("brevity penalty", "BP") for key, name in METRIC_NAMES.items()
}
SHORT = ("bleu_1", "bleu_4", "meteor")  # the others are on the page of all scores
PLAIN = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider")
README_ROWS = {
    "clip-dinov2-coco-scst": "CLIP ViT-B/16 and DINOv2 ViT-S/14 + transformer, COCO and Flickr8k",
    "clip-coco-long": "CLIP ViT-B/16 + transformer, COCO and Flickr8k, the large model",
    "dinov2-coco-words": "DINOv2 ViT-S/14 + transformer, COCO and Flickr8k",
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
        "RESULTS.md": {
            "systems": systems(folder),
            "coco": coco_systems(folder / "coco"),
            "plots": plots(folder, ("quality.png", "curves.png")),
        },
        "results/scores.md": {"scores": scores(folder), "curves": curves(folder)},
        "results/captions.md": {"samples": samples(folder)},
        "results/commands.md": {"runs": runs(folder), "trials": experiment_sections.trial_commands(folder)},
        "results/attention.md": _some(experiments, "attention", "attention against occlusion", "attention on objects"),
        "results/experiments.md": _some(
            experiments,
            "encoders",
            "losses",
            "BLEU-1",
            "teacher forcing",
            "gradient variance",
            "confidence",
            "gender words",
        )
        | experiment_sections.trials(folder),
        "results/failures.md": _some(experiments, "failures"),
    }


def _some(blocks: dict[str, str], *names: str) -> dict[str, str]:
    return {name: blocks[name] for name in names}


def best_systems(folder: Path) -> str:
    """The README's table: one system of each kind."""
    rows = {name: row for name, row in read_rows(folder).items() if row.test and name in README_ROWS}
    coco = {name: row for name, row in read_rows(folder / "coco").items() if row.test}
    default = checkpoint_hash(DEFAULT_MODEL)
    lines = []
    for name, row in rows.items():
        mark = "**" if row.checkpoint == default else ""
        what = README_ROWS[name] + (", the default model" if mark else "")
        scores = [number(row.test[key]) for key in ("bleu_4", "meteor", "cider")]
        everyday = number(coco[name].test["cider"]) if name in coco else ""
        lines.append([f"{mark}{what}{mark}", *scores, everyday, f"{row.parameters / 1e6:.1f} M"])
    return table(["system", "BLEU-4", "METEOR", "CIDEr-D", "CIDEr-D on COCO", "parameters"], lines, left=1)


def systems(folder: Path) -> str:
    """One line per system, best first; below the table the recipes that have no row, and why."""
    rows = {name: row for name, row in read_rows(folder).items() if row.test}
    shipped = checkpoint_hash(DEFAULT_MODEL)
    lines = [_system(folder, name, row, row.checkpoint == shipped) for name, row in rows.items()]
    done = {row.recipe for row in rows.values()}
    waiting = {recipe: why for recipe, why in WITHOUT_ROW.items() if recipe not in done}
    reasons = (
        f"{why[0].upper()}{why[1:]}: {', '.join(f'`{recipe}`' for recipe, own in waiting.items() if own == why)}."
        for why in dict.fromkeys(waiting.values())
    )
    head = ["system", *(LABELS[key] for key in SHORT), "CIDEr-D (95 %)", "different captions", "words"]
    return "\n\n".join([table([*head, "parameters", "minutes"], lines, left=1), " ".join(reasons)]).strip()


def _variety(path: Path) -> list[str]:
    """How many different captions the test photos have, and how many different words these use."""
    if not path.is_file():
        return ["", ""]
    captions = {tuple(split_words(caption)) for caption in read_results(path).values()}
    return [str(len(captions)), str(len({word for caption in captions for word in caption}))]


def _system(folder: Path, name: str, row: Row, shipped: bool) -> list[str]:
    link = f"[`{name}`](results/{name}.json)"
    what = f"**{escape(title(row))}** ({link}, the default model)" if shipped else f"{escape(title(row))} ({link})"
    cider = f"{number(row.test['cider'])} ({_range(row, 'cider')})"
    size, minutes = (f"{row.parameters / 1e6:.1f} M", f"{row.train_minutes:.0f}") if row.parameters else ("", "")
    variety = _variety(folder / f"{name}.captions.json")
    return [what, *(number(row.test[key]) for key in SHORT), cider, *variety, size, minutes]


def coco_systems(folder: Path) -> str:
    """One line per system on COCO's test photos, best first: CHAIR next to CIDEr-D."""
    keys = ("cider", "chair_i", "chair_s", "bleu_4", "meteor")
    lines = []
    for name, row in read_rows(folder).items():
        if row.test:
            scores = (f"{number(row.test[key])} ({_range(row, key)})" if key in row.test else "" for key in keys[:3])
            others = (number(row.test[key]) for key in keys[3:])
            photos = f"{row.train_photos:,}" if row.train_photos else ""
            size = f"{row.parameters / 1e6:.1f} M" if row.parameters else ""
            lines.append(
                [f"{escape(title(row))} ([`{name}`](results/coco/{name}.json))", *scores, *others, photos, size]
            )
    head = ["system", *(f"{LABELS[key]} (95 %)" for key in keys[:3]), *(LABELS[key] for key in keys[3:])]
    return table([*head, "training photos", "parameters"], lines, left=1) if lines else NOTHING


def _range(row: Row, key: str) -> str:
    low, high = row.interval[key]
    return f"{number(low)}–{number(high)}"


def scores(folder: Path) -> str:
    """Every score of every row: test with intervals, test without brevity penalty, val."""
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
            [[f"`{name}`", *(number(row.val[key]) for key in PLAIN)] for name, row in rows.items()],
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
    numbers = [(kept.get("train_nll", kept.get("train_loss")), 2), (kept.get("val_nll"), 2)]
    numbers += [(kept.get("val_nll_per_caption"), 1), (kept["val"].get("bleu_4"), 1), (kept["val"].get("cider"), 1)]
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


def _training(row: Row) -> str:
    if not row.parameters:
        return ""  # people
    return f"{row.parameters:,} parameters ({row.trainable:,} trained), {row.train_minutes:g} minutes, "


def all_rows(folder: Path) -> dict[str, Row]:
    """Flickr8k's, then COCO's with its name."""
    return read_rows(folder) | {f"coco/{name}": row for name, row in read_rows(folder / "coco").items()}


def plans_file(folder: Path) -> Path:
    """The plans of the rows in results/ are part of the package; other rows have theirs beside them."""
    return PLANS if folder.resolve() == RESULTS else folder / "plans.toml"


def published_scores(folder: Path) -> str:
    """What `sightline reproduce` shows of the rows, as JSON."""

    def shown(scores: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in scores.items() if not key.endswith("_no_bp")}

    values = {
        name: {
            "test": shown(row.test),
            "interval": shown(row.interval),
            "minutes": row.train_minutes,
            "note": row.note,
        }
        for name, row in all_rows(folder).items()
        if row.test
    }
    lines = (f"{json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in values.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def runs(folder: Path) -> str:
    """How to make each row again."""
    parts = []
    plans = load_plans(plans_file(folder))
    for name, row in all_rows(folder).items():
        if name not in plans.rows:
            raise DataError(f"{name} has no plan in {plans_file(folder).name}: results/tools/add_row.py writes it")
        data = " ".join(f"--data {own}/" for own in plans.datasets_of(plans.rows[name]))
        made = "\n".join(f"    {step.command}" for step in steps(plans, name, Paths()))
        commands = f"    sightline reproduce {name} {data}\n\n{made}"
        note = f"\n\n{escape(row.note)}" if row.note else ""
        parts.append(
            f"`{name}`: commit {row.commit}, seed {row.seed}, {_training(row)}`{row.signature}`\n\n{commands}{note}"
        )
    return "\n\n".join(parts) or NOTHING


def filled(page: str, blocks: Mapping[str, str], name: str = "the page") -> str:
    """The page with its blocks replaced; a block without its markers, or markers without a block, are an error."""
    for block, text in blocks.items():
        begin, end = f"<!-- results: {block} -->", f"<!-- end of results: {block} -->"
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise DataError(f"{name} has no markers for {block!r}: it needs {begin} and {end} once, in this order")
        page = page[: page.index(begin)] + f"{begin}\n\n{text.strip()}\n\n" + page[page.index(end) :]
    for block in re.findall(r"<!-- results: (.*?) -->", page):
        if block not in blocks:
            raise DataError(f"{name} has markers for {block!r}, which nothing fills: take the two comments out")
    return page


def pages(root: Path = ROOT, results: Path = RESULTS) -> dict[Path, tuple[str, str]]:
    """Each page as it is and as it should be."""
    found = {}
    for name, texts in blocks(results).items():
        path = root / name
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"{printable(path)} cannot be read: {error.strerror}") from None
        if name.startswith("results/"):  # links are relative to the page
            texts = {block: made.replace("](results/", "](") for block, made in texts.items()}
        found[path] = (text, filled(text, texts, name))
    if results.resolve() == RESULTS:
        found[SCORES] = (SCORES.read_text(encoding="utf-8"), published_scores(results))
    return found


def write_pages(root: Path = ROOT, results: Path = RESULTS) -> list[Path]:
    """Returns the files that changed."""
    changed = {path: after for path, (before, after) in pages(root, results).items() if before != after}
    for path, text in changed.items():
        write_atomically(path, text)
    return list(changed)


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("--check", action="store_true", help="change nothing")
    if reader.parse_args(arguments).check:
        behind = [path.name for path, (before, after) in pages().items() if before != after]
        if behind:
            raise DataError(f"out of date: {', '.join(behind)}; run `python results/tools/table.py`")
        print("every page agrees with the JSON files in results/")
        return
    print(" ".join(path.name for path in write_pages()) or "nothing to change")


if __name__ == "__main__":
    raise SystemExit(run(main))
