"""How teacher-forced outputs score beside the captions that a model generates.

    python results/tools/teacher_forced.py runs/dinov2-coco --data flickr8k/ --limit 500 --precision bfloat16

A teacher-forced output is the model's most likely next word at each position of a human caption, given the human words
before it. One for every human caption of val is scored against all captions of its photo, as the student report "Show,
Attend and Tell" (Sun, Wei, Chen, Hu and Baek) does. It is not a caption: a new photo has no human words to follow.
Writes results/teacher_forced.json and brings the pages up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from add_row import captions_from_cache
from rows import public, read_json, write_json
from script import RESULTS, parser, run
from sightline.data import Example, load_dataset
from sightline.engine.captioner import Captioner, load
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ConfigError
from sightline.evaluation.metrics import score
from sightline.io.progress import track
from sightline.nn.hub import resolve
from sightline.training.feature_cache import FeatureCache
from table import write_pages

METRICS = ("bleu", "meteor", "cider")
KEYS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "cider")
BATCH = 16


@torch.inference_mode()
def forced_outputs(captioner: Captioner, examples: Sequence[Example], precision: str) -> list[list[str]]:
    """For each photo one output for each of its captions, cut where the model would have ended it."""
    (backend,) = captioner.backends
    assert isinstance(backend, TorchBackend)
    model, tokenizer = backend.model, backend.tokenizer
    cache = FeatureCache(model.encoder, examples, grid=model.decoder.uses_grid, precision=precision)
    cache.fill(device=captioner.device)
    outputs = []
    for index, example in enumerate(track(examples, "reading along", len(examples))):
        rows = [tokenizer.encode(caption) for caption in example.captions]
        tokens = torch.full((len(rows), max(map(len, rows))), tokenizer.pad)
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = torch.tensor(ids)
        best = model.decoder(cache.features([index]).to(captioner.device), tokens[:, :-1]).logits.argmax(-1)
        outputs.append([tokenizer.decode(best[row, : len(ids) - 1].tolist()) for row, ids in enumerate(rows)])
    return outputs


def measure(captioner: Captioner, examples: Sequence[Example], precision: str) -> dict[str, dict[str, float]]:
    """Scores times 100 of both kinds of output."""
    captions = captions_from_cache(captioner, examples, precision)
    generated = score([captions[example.name] for example in examples], [list(e.captions) for e in examples], METRICS)
    forced = forced_outputs(captioner, examples, precision)
    pairs = [(text, list(example.captions)) for example, texts in zip(examples, forced) for text in texts]
    followed = score([text for text, _ in pairs], [references for _, references in pairs], METRICS)
    return {
        name: {key: round(100 * scores[key], 2) for key in KEYS if key in scores}
        for name, scores in (("generated", generated), ("teacher-forced", followed))
    }


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("model", type=Path, help="a run's folder")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--split", default="val")
    reader.add_argument("--limit", type=int, help="only the split's first photos")
    reader.add_argument("--precision", default="float32", help="of the cached features")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where teacher_forced.json is kept")
    given = reader.parse_args(arguments)
    dataset = load_dataset(given.data)
    examples = dataset.examples(given.split)[: given.limit]
    if not examples:
        raise ConfigError(f"{given.data} has no photos in split {given.split!r}")
    folder = resolve(given.model)
    found = measure(load(folder, runtime="torch"), examples, given.precision)
    limit = f" --limit {given.limit}" if given.limit else ""
    split = "" if given.split == "val" else f" --split {given.split}"
    precision = "" if given.precision == "float32" else f" --precision {given.precision}"
    options = f"--data {dataset.name}/{split}{limit}{precision}"
    command = f"python results/tools/teacher_forced.py runs/{folder.name} {options}"
    entry: dict[str, Any] = {
        "model": folder.name, "data": dataset.name, "split": given.split, "photos": len(examples),
        "command": public(command), **found,
    }  # fmt: skip
    path = given.results / "teacher_forced.json"
    before = read_json(path)["models"] if path.is_file() else []
    write_json(path, {"models": [*(other for other in before if other["model"] != folder.name), entry]})
    if given.results.resolve() == RESULTS:
        write_pages()
    for name in ("generated", "teacher-forced"):
        print(f"{name}: " + ", ".join(f"{key} {value:.1f}" for key, value in found[name].items()))


if __name__ == "__main__":
    raise SystemExit(run(main))
