"""What 500 photos of one's own bring: a model trained without water learns it, and one that knows dogs improves.

    python results/tools/own_data.py --data flickr8k/ --weights dinov2_vits14.safetensors --runs FOLDER

Water is held back: a model is trained on the photos of which no caption mentions it, then fine-tuned on 500 that are
full of it, or given a datastore of them, and scored once on the test photos of water. Dogs are known to the default
model: the val photos of dogs are one's own here, the test photos of dogs are scored. Weights of the datastore and
epochs are chosen on an eighth of one's own photos. What is finished in FOLDER is not done again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rows import write_json
from script import RESULTS, ROOT, evenly, parser, run, table
from sightline.data import Dataset, Example, load_dataset
from sightline.engine.captioner import Captioner, load
from sightline.engine.retrieval import Datastore
from sightline.evaluation.metrics import build, prepare
from sightline.evaluation.metrics.metric import paired
from sightline.evaluation.scoring import evaluate
from sightline.io.files import write_atomically
from sightline.nn.checkpoint import load_checkpoint
from sightline.recipes.config import load_recipe
from sightline.training.feature_cache import FeatureCache
from sightline.training.retrieval import EncodedBatch, best_weight, datastore_of, try_weights
from sightline.training.trainer import train
from table import filled

PAGE = ROOT / "docs" / "own-data.md"
WATER = re.compile(
    r"\b(?:water\w*|sea|ocean|lake|river|stream|pool|pond|beach\w*|shore\w*|waves?|surf\w*|swim\w*|div(?:e|es|er|ing)|"
    r"kayak\w*|cano\w*|raft\w*|boats?|boating|rowing|sail\w*|wakeboard\w*|wake|snorkel\w*|splash\w*)\b"
)
DOGS = re.compile(r"\b(?:dogs?|pupp(?:y|ies))\b")
MOST = 3  # captions of five that mention a subject, for the photo to be of it
SIZES = (50, 200, 500)
OTHERS = 200  # photos without water: what is forgotten
SHOWN = ("bleu_4", "meteor", "cider")
BASE = (  # five short epochs
    "data.captions=random", "data.captions_per_photo=2", "training.epochs=5", "training.learning_rate=0.0008",
    "training.average=0.99", "training.evaluate_every=5", "training.val_photos=200", "decoding.no_repeat_ngram=3",
)  # fmt: skip


def about(subject: re.Pattern[str], examples: Sequence[Example], least: int, most: int = 5) -> list[Example]:
    """The photos of which so many captions mention a subject."""
    counts = [sum(bool(subject.search(text.lower())) for text in example.captions) for example in examples]
    return [example for example, count in zip(examples, counts) if least <= count <= most]


def own_photos(name: str, flickr8k: Dataset, photos: Sequence[Example], test: Sequence[Example]) -> Dataset:
    """One's own photos, every eighth of them to choose by, and the photos to be scored."""
    val = list(photos[::8])
    kept = [photo for photo in photos if photo not in val]
    return Dataset(name, flickr8k.root, {"train": kept, "val": val, "test": list(test)}, flickr8k.report)


class Bench:
    """Captions photos from features that are computed once for each encoder."""

    def __init__(self, model: str | Path):
        self.encoder = load_checkpoint(model).model.encoder
        self.encoder.set_trainable("frozen")

    def encoded(self, examples: Sequence[Example], batch: int = 50) -> list[EncodedBatch]:
        cache = FeatureCache(self.encoder, examples, precision="bfloat16").fill()
        starts = range(0, len(examples), batch)
        rows = [range(start, min(start + batch, len(examples))) for start in starts]
        return [([examples[row] for row in own], [cache.features(own)]) for own in rows]

    def captions(self, captioner: Captioner, examples: Sequence[Example]) -> dict[str, str]:
        options = captioner.options(want_attention=False)
        found: dict[str, str] = {}
        for batch, features in self.encoded(examples):
            captions = captioner.finish(captioner.decode(features, options), features)
            found |= {example.name: caption.text for example, caption in zip(batch, captions)}
        return found

    def datastore(self, captioner: Captioner, data: Dataset) -> Datastore:
        """Of the training photos, with the weight that is best on the val photos."""
        datastore = datastore_of(captioner, self.encoded(data.examples("train")))
        scores = try_weights(captioner, datastore, self.encoded(data.examples("val")))
        return datastore.with_weight(best_weight(scores))


def fine_tuned(data: Dataset, folder: Path, changes: Sequence[str]) -> Path:
    if not (folder / "finished").is_file():
        train(load_recipe("own-photos", changes), data, folder, resume=(folder / "state.safetensors").is_file())
        (folder / "finished").touch()
    return folder


def measure(model: str | Path, tuned: str | Path, data: Dataset, bench: Bench, which: Sequence[str]) -> dict[str, Any]:
    """Each way's captions of the test photos, scored, and its gain over the model as it is."""
    captions: dict[str, dict[str, str]] = {}
    weights: dict[str, float] = {}
    for name, folder in (("as it is", model), ("fine-tuned", tuned)):
        captioner = load(folder, runtime="torch")
        if name in which:
            captions[name] = bench.captions(captioner, data.examples("test"))
        augmented = "retrieval" if name == "as it is" else "fine-tuned, retrieval"
        if augmented in which:
            datastore = bench.datastore(captioner, data)
            weights[augmented] = datastore.contents.weight
            captions[augmented] = bench.captions(Captioner(captioner.backends, datastore), data.examples("test"))
    return scored(captions, data, weights)


def scored(captions: dict[str, dict[str, str]], data: Dataset, weights: dict[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    gains = _gains(captions, data.examples("test"))
    for name, own in captions.items():
        result = evaluate(None, data, "test", captions=own)
        found[name] = {
            "scores": {key: round(100 * result.scores[key], 1) for key in SHOWN},
            "interval": {key: [round(100 * value, 1) for value in result.intervals[key]] for key in SHOWN},
            **({"gain": gains[name]} if name in gains else {}),
            **({"weight": weights[name]} if name in weights else {}),
        }
    return found


def _gains(captions: dict[str, dict[str, str]], examples: Sequence[Example]) -> dict[str, Any]:
    """The difference to the model as it is, with its paired 95 % interval."""
    people = [example.captions for example in examples]
    rows = {name: prepare([own[example.name] for example in examples], people) for name, own in captions.items()}
    gains: dict[str, Any] = {name: {} for name in captions if name != "as it is"}
    if "as it is" not in captions:
        return {}
    for metric in build(("bleu", "meteor", "cider")).values():
        statistics = {name: metric.statistics(*own) for name, own in rows.items()}
        for name, gain in gains.items():
            for key, found in paired(metric, statistics[name], statistics["as it is"]).items():
                if key in SHOWN:
                    gain[key] = [round(100 * found[part], 1) for part in ("difference", "low", "high")]
    return gains


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("--data", required=True, help="Flickr8k")
    reader.add_argument("--weights", required=True, help="DINOv2 ViT-S/14's, a .safetensors file")
    reader.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where own_data.json goes")
    given = reader.parse_args(arguments)
    flickr8k = load_dataset(given.data)
    values = {"water": water(flickr8k, given.runs, given.weights), "dogs": dogs(flickr8k, given.runs)}
    write_json(given.results / "own_data.json", values)
    if given.results == RESULTS:
        write_atomically(PAGE, filled(PAGE.read_text(encoding="utf-8"), blocks(values), PAGE.name))


WAYS = {
    "as it is": "the model as it is",
    "retrieval": "with a datastore, nothing trained",
    "fine-tuned": "fine-tuned",
    "fine-tuned, retrieval": "fine-tuned, with a datastore",
}


def blocks(values: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/own-data.md."""
    sizes = values["water"]["by size"]
    largest = sizes[str(max(map(int, sizes)))]
    others = values["water"]["other photos"]
    lines = [[label, *_cells(largest[way])] for way, label in WAYS.items() if way in largest]
    head = ["", "B4", "METEOR", "CIDEr-D (95 %)", "gain in CIDEr-D (95 %)"]
    by_size = [
        [size, *(f"{found[way]['scores']['cider']:.1f}" for way in ("retrieval", "fine-tuned"))]
        for size, found in sizes.items()
    ]
    return {
        "own data, water": table(head, lines, left=1),
        "own data, sizes": table(["own photos", "with a datastore", "fine-tuned"], by_size),
        "own data, others": table(head, [[WAYS[way], *_cells(found)] for way, found in others.items()], left=1),
        "own data, dogs": table(
            head, [[WAYS[way], *_cells(own)] for way, own in values["dogs"]["ways"].items()], left=1
        ),
    }


def _cells(found: dict[str, Any]) -> list[str]:
    scores, (low, high), gain = found["scores"], found["interval"]["cider"], found.get("gain", {}).get("cider")
    more = f"{gain[0]:+.1f} ({gain[1]:+.1f} to {gain[2]:+.1f})" if gain else ""
    return [
        f"{scores['bleu_4']:.1f}",
        f"{scores['meteor']:.1f}",
        f"{scores['cider']:.1f} ({low:.1f}–{high:.1f})",
        more,
    ]


def water(flickr8k: Dataset, runs: Path, weights: str) -> dict[str, Any]:
    """A subject that the model was not trained on, with ever more photos of it."""
    dry = {split: about(WATER, flickr8k.examples(split), 0, 0) for split in ("train", "val", "test")}
    wet = {split: about(WATER, flickr8k.examples(split), MOST) for split in ("train", "test")}
    base = runs / "without-water"
    if not (base / "finished").is_file():
        data = Dataset("flickr8k", flickr8k.root, dry, flickr8k.report)
        resume = (base / "state.safetensors").is_file()
        train(load_recipe("dinov2-coco", [f"encoder.weights={weights}", *BASE]), data, base, resume)
        (base / "finished").touch()
    bench = Bench(base)
    start = [f"training.init={base}", f"encoder.weights={weights}"]
    by_size: dict[str, Any] = {}
    fewer = ("as it is", "retrieval", "fine-tuned")
    for size in SIZES:
        data = own_photos("water", flickr8k, evenly(wet["train"], size), wet["test"])
        tuned = fine_tuned(data, runs / f"water-{size}", start)
        which = (*fewer, "fine-tuned, retrieval") if size == max(SIZES) else fewer
        by_size[str(size)] = measure(base, tuned, data, bench, which)
    kept = Dataset("others", flickr8k.root, {"test": evenly(dry["val"], OTHERS)}, flickr8k.report)
    datastore = bench.datastore(load(base, runtime="torch"), data)
    augmented = load(base, runtime="torch", datastore=datastore)
    ways = {"as it is": load(base), "fine-tuned": load(tuned), "retrieval": augmented}
    others = {name: bench.captions(captioner, kept.examples("test")) for name, captioner in ways.items()}
    return {
        "photos": {"base": len(dry["train"]), "own": max(SIZES), "test": len(wet["test"]), "others": OTHERS},
        "new words": load(tuned).tokenizer.size - load(base).tokenizer.size,
        "by size": by_size,
        "other photos": scored(others, kept, {}),
    }


def dogs(flickr8k: Dataset, runs: Path) -> dict[str, Any]:
    """A subject that the default model knows well."""
    own, test = (about(DOGS, flickr8k.examples(split), MOST) for split in ("val", "test"))
    data = own_photos("dogs", flickr8k, own, test)
    tuned = fine_tuned(data, runs / "dogs", [])
    which = ("as it is", "retrieval", "fine-tuned")
    found = measure("default", tuned, data, Bench(load("default", runtime="torch").folders[0] or ""), which)
    return {"photos": {"own": len(own), "test": len(test)}, "ways": found}


if __name__ == "__main__":
    raise SystemExit(run(main))
