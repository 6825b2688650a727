"""The generated blocks that show an experiment rather than a system, each from its own JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rows import read_json, read_rows
from script import NOTHING, escape, number, table


def blocks(folder: Path) -> dict[str, str]:
    return {
        "attention": _if_there(folder / "attention" / "index.json", attention),
        "attention against occlusion": _if_there(folder / "attention_vs_occlusion.json", occlusion),
        "attention on objects": _if_there(folder / "attention_on_objects.json", occlusion),
        "gradient variance": _if_there(folder / "gradient_variance.json", variance),
        "confidence": _if_there(folder / "confidence.json", confidence),
        "BLEU-1": _if_there(folder / "bleu_1.json", bleu_1),
        "teacher forcing": _if_there(folder / "teacher_forced.json", teacher_forced),
        "gender words": _if_there(folder / "gender_words.json", gender_words),
        "failures": _if_there(folder / "failures.json", failures),
        "encoders": encoders(folder),
        "losses": losses(folder),
    }


TRIALS = (  # the experiments of trials.json, in the page's order
    "training stages", "language pre-training", "small encoders", "small model's stages", "two encoders as one",
    "two encoders as one, on COCO", "training budget", "sampled or fixed captions",
    "sampled or fixed captions, thirty epochs", "GloVe", "decoding options",
    "attention at inference", "hard attention from random weights", "soft attention trained on",
    "training stages on COCO", "METEOR in the reward", "ablations on COCO", "different words",
    "no content word twice", "pseudo-captions", "training on pseudo-captions", "encoder trained on COCO",
    "attention maps",
)  # fmt: skip


def trials(folder: Path) -> dict[str, str]:
    """A table for each experiment of trials.json."""
    path = folder / "trials.json"
    found = read_json(path) if path.is_file() else {}
    return {name: _trials(found[name]) if name in found else NOTHING for name in TRIALS}


def _trials(values: dict[str, Any]) -> str:
    return table(values["columns"], [trial["cells"] for trial in values["trials"]], left=values["text_columns"])


def trial_commands(folder: Path) -> str:
    """What was run for each line of these tables."""
    path = folder / "trials.json"
    parts = []
    for name, values in (read_json(path) if path.is_file() else {}).items():
        commands = dict.fromkeys(command for trial in values["trials"] for command in trial["commands"])
        parts.append(f"{name[0].upper()}{name[1:]}:\n\n" + "\n".join(f"    {command}" for command in commands))
    return "\n\n".join(parts) or NOTHING


# Sun, Wei, Chen, Hu and Baek, "Show, Attend and Tell", table 1: teacher-forced outputs, BLEU-1, BLEU-4, METEOR
REPORT = {
    "AlexNet": ("sat-soft-alexnet", 60.44, 10.81, 12.89),
    "GoogLeNet": ("sat-soft-googlenet", 64.53, 14.77, 16.45),
    "VGG-19": ("sat-soft-vgg19", 64.79, 15.48, 17.08),
    "DenseNet-201 (ours: 121)": ("sat-soft-densenet121", 64.81, 15.84, 16.95),
    "ResNet-152": ("sat-soft-resnet152", 65.67, 16.48, 17.94),
}
# "Building an Image Captioning Transformer from Scratch" (wangyi.ai, 2026): train and val loss per token
BLOG_POST = {
    "characters, from scratch": ("patch-transformer-char", 0.90, 0.99),
    "characters, CLIP": ("clip-transformer", 0.75, 0.86),
    "words, from scratch": ("patch-transformer-word", 2.42, 2.98),
    "words, CLIP, random vectors": ("clip-word", None, None),
    "words, CLIP, GloVe": ("clip-glove", 1.78, 2.55),
}


def encoders(folder: Path) -> str:
    """The student report's five encoders beside ours; of several rows of a recipe the best on val."""
    rows = read_rows(folder)
    lines = []
    for name, (recipe, *reported) in REPORT.items():
        own = [row for row in rows.values() if row.recipe == recipe and row.test]
        best = max(own, key=lambda row: row.val["cider"], default=None)
        keys = ("bleu_1", "bleu_4", "meteor", "cider")
        lines.append([name, *map(number, reported), *(number(best.test[key]) if best else "" for key in keys)])
    head = ["encoder", "report: B1", "B4", "METEOR", "ours: B1", "B4", "METEOR", "CIDEr-D"]
    return table(head, lines, left=1)


def losses(folder: Path) -> str:
    """The blog post's losses per token beside ours, at the epoch that was kept."""
    lines = []
    for name, (row, *published) in BLOG_POST.items():
        path = folder / f"{row}.curve.json"
        epochs = read_json(path)["epochs"] if path.is_file() else []
        kept: dict[str, Any] = next((epoch for epoch in reversed(epochs) if epoch["best"]), {})
        found = [*published, kept.get("train_nll"), kept.get("val_nll")]
        cells = ["" if value is None else number(value, 2) for value in found]
        lines.append([f"{name} (`{row}`)", *cells, str(len(epochs) or "")])
    return table(["system", "source: train", "val", "ours: train", "val", "epochs"], lines, left=1)


def _if_there(path: Path, text: Any) -> str:
    return text(read_json(path)) if path.is_file() else NOTHING


def attention(values: dict[str, Any]) -> str:
    """Every picture under its photo's name."""
    parts = []
    for entry in values["photos"]:
        texts = "; ".join(f"{name}: “{escape(text)}”" for name, text in entry.get("captions", {}).items())
        described = texts.replace("\\", "") or f"the photo {entry['photo']} and each model's attention for each word"
        parts.append(f"`{entry['photo']}`\n\n![{described}](results/attention/{entry['picture']})")
    weights = ", ".join(f"{name} {own}" for name, own in values["models"].items())
    return "\n\n".join([*parts, f"Weights: {weights}."])


def occlusion(values: dict[str, Any]) -> str:
    """All words of every model, then each model's words one by one."""
    lines = []
    for name, found in values.items():
        numbers = found["all words"]
        gains = [f"{low:+.1f} to {high:+.1f}" for low, high in (numbers[f"{key}, gain"] for key in MEASURES)]
        pairs = [(number(numbers[key]), number(numbers[f"{key}, other photos"])) for key in MEASURES]
        cells = [cell for (own, other), gain in zip(pairs, gains) for cell in (own, other, gain)]
        lines.append([escape(name), str(found["photos"]), str(found["words"]), *cells])
    columns = [f"{label}{more}" for label in ("peak, %", "attention, %") for more in ("", ", others", ", gain")]
    parts = [table(["model", "photos", "words", *columns], lines, left=1)]
    words = list(dict.fromkeys(word for found in values.values() for word in found["by word"]))
    parts.append("The peak by word, with other photos' maps in brackets and the number of words:")
    parts.append(table(["word", *map(escape, values)], [[word, *_by_word(values, word)] for word in words], left=1))
    return "\n\n".join(parts)


MEASURES = ("peak", "attention")


def _by_word(values: dict[str, Any], word: str) -> list[str]:
    cells = []
    for found in values.values():
        own = found["by word"].get(word)
        cells.append(f"{own['peak']:.0f} ({own['peak, other photos']:.0f}), {own['words']}" if own else "")
    return cells


def gender_words(values: dict[str, Any]) -> str:
    """What captions name in each class of photos, and how often they name each gender at all."""
    lines, totals = [], []
    for name, found in values.items():
        for kind, counts in found["classes"].items():
            described = f"most people name a {kind}" if kind in ("man", "woman") else kind
            cells = [f"{counts[key]} ({100 * counts[key] / max(1, counts['photos']):.0f} %)" for key in GENDERS]
            lines.append([escape(name), described, str(counts["photos"]), *cells])
        totals.append([escape(name), *(number(found[who][key]) for key in GENDERS[:2] for who in WRITERS)])
    columns = ["man, model", "man, people", "woman, model", "woman, people"]
    return "\n\n".join(
        [
            table(["captions", "photos where", "photos", "man", "woman", "both", "neither"], lines, left=2),
            "Of 100 captions, so many name a man or a woman:",
            table(["captions", *columns], totals, left=1),
        ]
    )


GENDERS = ("man", "woman", "both", "none")
WRITERS = ("captions", "human captions")


def variance(values: dict[str, Any]) -> str:
    """Variances as multiples of that with all three tricks."""
    lines = []
    for weights, found in values["weights"].items():
        whole = found["all three tricks"]
        for name, own in found.items():
            if name != "baseline":
                cells = [
                    cell
                    for part in ("attention", "all")
                    for cell in (
                        f"{own[part]['variance']:.2e}",
                        f"{own[part]['variance'] / whole[part]['variance']:.2f}",
                        f"{own[part]['squared mean']:.2e}",
                    )
                ]
                lines.append([weights, name, *cells])
    columns = [
        f"{label}{more}" for label in ("attention", "all") for more in (": variance", ", × all three", ", squared mean")
    ]
    text = table(["weights", "gradient with", *columns], lines, left=2)
    return (
        f"{text}\n\n{values['batches']} batches of {values['captions']} {values['split']} captions, "
        f"{values['repeats']} draws of each gradient, weights {values['checkpoint']}; the baseline stood at "
        f"{values['weights']['trained']['baseline']:.2f} a word (trained) and "
        f"{values['weights']['fresh']['baseline']:.2f} (fresh)."
    )


def confidence(values: dict[str, Any]) -> str:
    """How far the numbers hold on photos they were not fitted to, and what is marked."""
    check, lines = values["check"], []
    rows = {name: check[key] for key, name in (("words", "words"), ("content_words", "content words"))}
    rows["captions"] = check["captions"]
    rows |= {f"captions, {source}": found for source, found in check.get("sources", {}).items()}
    rows |= {f"captions, {source}, test": found for source, found in values["test"].items()}
    for name, found in rows.items():
        before, after = found["before"], found["after"]
        shares = (after["rate"], before["ece"], after["ece"], before["brier"], after["brier"])
        lines.append([name, f"{after['count']:,}", *(number(100 * share) for share in shares)])
    head = ["", "number", "right, %", "ECE before", "after", "Brier before", "after"]
    strange = [
        [kind, str(own["pictures"]), number(100 * own["marked"], 0), number(100 * own["confidence"], 0)]
        for kind, own in values["strange"].items()
    ]
    captions = values["check"]["captions"]["after"]
    mean = sum(count * shown for count, shown, _ in captions["bins"]) / captions["count"]
    marked = number(100 * values["check"]["marked"])
    strange.append([f"{values['data']} val photos", str(values["val_photos"]), marked, number(100 * mean, 0)])
    for source, found in values["test"].items():
        bins = found["after"]["bins"]
        mean = sum(count * shown for count, shown, _ in bins) / found["after"]["count"]
        cells = [str(found["after"]["count"]), number(100 * found["marked"]), number(100 * mean, 0)]
        strange.append([f"{source} test photos", *cells])
    return "\n\n".join(
        [
            table(head, lines, left=1),
            "![Confidence against the share that was right, before and after](results/plots/reliability.png)",
            table(["kind", "pictures", "marked unsure, %", "mean confidence, %"], strange, left=1),
            f"Weights {values['checkpoint']}; fitted on {values['val_photos']:,} val photos and "
            f"{values['train_photos']:,} training photos.",
        ]
    )


def bleu_1(values: dict[str, Any]) -> str:
    """BLEU without brevity penalty, by our rules and by the paper's; then BLEU-1 of short and long captions."""
    lines = []
    for name, row in values["rows"].items():
        for rules in ("ours", "with a full stop"):
            found = row[rules]
            lengths = (found["words"], found["words of the closest reference"])
            lines.append([f"`{name}`", rules, *map(number, (*found["bleu"], *lengths))])
    head = ["row", "rules", "B1", "B2", "B3", "B4", "words", "closest reference"]
    ranges = list(next(iter(values["rows"].values()))["BLEU-1 by length"])
    by_length = [
        [
            f"`{name}`",
            *(
                f"{number(found['bleu_1'])} ({found['captions']})" if found["captions"] else ""
                for found in row["BLEU-1 by length"].values()
            ),
        ]
        for name, row in values["rows"].items()
    ]
    return "\n\n".join(
        [
            table(head, lines, left=2),
            "BLEU-1 by the length of the caption, with the number of captions:",
            table(["row", *ranges], by_length, left=1),
            f"`{values['command']}`",
        ]
    )


def teacher_forced(values: dict[str, Any]) -> str:
    """Each model's two kinds of output, scored alike."""
    keys = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "cider")
    lines = []
    for found in values["models"]:
        for output in ("generated", "teacher-forced"):
            scores = found[output]
            lines.append(
                [f"`{found['model']}`", output, *(number(scores[key]) if key in scores else "" for key in keys)]
            )
    first = values["models"][0]
    photos = f"{first['photos']} {first['data']} {first['split']} photos"
    commands = "; ".join(f"`{found['command']}`" for found in values["models"])
    head = ["model", "output", "B1", "B2", "B3", "B4", "METEOR", "CIDEr-D"]
    return f"{table(head, lines, left=2)}\n\n{photos}: {commands}."


def failures(values: dict[str, Any]) -> str:
    """What the worst have in common, then each of them."""
    count = len(values["worst"])
    lines = [
        [name, number(own["worst"]), number(own["all"]), f"{own['correlation']:+.2f}"]
        for name, own in values["summary"].items()
    ]
    head = ["", f"the {count} worst", f"all {values['images']}", "rank correlation with CIDEr-D"]
    parts = [f"Row: `{values['row']}`.", table(head, lines, left=1)]
    parts += [_failure(rank, entry) for rank, entry in enumerate(values["worst"], 1)]
    return "\n\n".join(parts)


def _failure(rank: int, entry: dict[str, Any]) -> str:
    scores, measures = entry["scores"], entry["measures"]
    kinds = [name.removesuffix(", %") for name, value in measures.items() if name.endswith(KINDS) and value]
    facts = f"CIDEr-D {number(scores['cider'], 2)}, METEOR {number(scores['meteor'])}"
    people = "\n".join(f"   - {escape(text)}" for text in entry["references"])
    shown = f"; {', '.join(kinds)}" if kinds else ""
    return f"{rank}. **{escape(entry['caption'])}** (`{entry['name']}`: {facts}{shown})\n{people}"


KINDS = ("no reference, %", "generic words, %")
