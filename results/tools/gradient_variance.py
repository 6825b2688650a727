"""How noisy hard attention's gradient is, with and without each of the paper's three tricks.

    python results/tools/gradient_variance.py runs/sat-hard-vgg19 --data flickr8k/

On a few fixed batches of training captions the gradient is drawn again and again, one draw of grid cells per caption,
as a training step does; what differs between draws is the estimator's noise. Its variance is summed over parameters and
averaged over batches: for the attention network's own parameters and for all of the decoder's. Dropout is off, so the
drawn cells (and which half of the captions attends to the expectation) are the only randomness left. Measured at the
trained weights and at fresh ones, by the training objective itself. Writes results/gradient_variance.json and brings
RESULTS.md up to date. Five minutes on one core for VGG-19's 14x14x512, with features
from SIGHTLINE_CACHE.

The moving average is what the objective itself arrives at on other batches with the same weights. Leaving out the
expectation or the entropy term changes what is estimated, not only how noisily. The last two settings are our own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rows import recipe_of, write_json
from script import RESULTS, parser, run
from sightline.data import Dataset, Example, load_dataset
from sightline.data.loader import Batch, CaptionLoader
from sightline.engine.captioner import Captioner
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ConfigError
from sightline.io.progress import track
from sightline.nn.checkpoint import CaptionModel, Checkpoint, checkpoint_hash, load_checkpoint
from sightline.nn.decoders import Decoder, build_decoder
from sightline.recipes.config import HardAttention as Settings
from sightline.training.feature_cache import FeatureCache
from sightline.training.objectives import HardAttention
from sightline.types import ImageFeatures
from table import write_pages

WARM_UP = 12  # batches the baseline is averaged over: 0.9 ** 12 leaves a quarter to the first
ATTENTION = ("key.", "query.", "energy.")  # f_att(a, h) = v' tanh(W_a a + W_h h + b)
PAPER = {"baseline": "average", "credit": "caption"}
# What each setting changes of the recipe's own objective; a baseline of None is none at all.
SETTINGS: dict[str, dict[str, Any]] = {
    "all three tricks": PAPER,
    "no baseline": PAPER | {"baseline": None},
    "no entropy term": PAPER | {"entropy": 0.0},
    "no expectation": PAPER | {"expectation": 0.0},
    "none of them": PAPER | {"baseline": None, "entropy": 0.0, "expectation": 0.0},
    "all three, judged by later words": {"baseline": "average", "credit": "later"},
    "and against the caption without draws": {"baseline": "own", "credit": "later"},
}


class Spread:
    """Mean and summed variance of gradients that come one by one (Welford), for named parameters."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.count = 0
        self.mean = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.squares = {name: torch.zeros_like(value) for name, value in parameters.items()}

    def add(self, gradients: dict[str, Tensor]) -> None:
        self.count += 1
        for name, gradient in gradients.items():
            difference = gradient - self.mean[name]
            self.mean[name] += difference / self.count
            self.squares[name].addcmul_(difference, gradient - self.mean[name])

    def read(self, prefixes: Sequence[str] = ("",)) -> tuple[float, float]:
        """The variance, and the squared length of the mean without what noise adds to it (never below zero)."""
        names = [name for name in self.mean if name.startswith(tuple(prefixes))]
        variance = sum(float(self.squares[name].double().sum()) for name in names) / (self.count - 1)
        length = sum(float(self.mean[name].double().square().sum()) for name in names)
        return variance, max(0.0, length - variance / self.count)


def without_dropout(decoder: Decoder) -> Decoder:
    """In training mode, so that grid cells are drawn, with no other randomness."""
    for module in decoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return decoder.requires_grad_(True).train()


def objective_for(
    model: CaptionModel, settings: Settings, pad: int, changes: Mapping[str, Any], warm_up: Sequence[Batch] = ()
) -> HardAttention:
    """The objective, its moving average after these batches."""
    options = settings.options() | dict(changes)
    objective = HardAttention(pad=pad, **(options | {"baseline": options["baseline"] or "average"}))
    objective.prepare(model, None)
    torch.manual_seed(0)
    with torch.no_grad():
        for batch in warm_up if options["baseline"] else ():
            objective(model, batch)
    return objective


def spread_of(model: CaptionModel, objective: HardAttention, batch: Batch, repeats: int, seed: int) -> Spread:
    parameters = {name: value for name, value in model.decoder.named_parameters() if value.requires_grad}
    spread = Spread(parameters)
    averages = {name: value.clone() for name, value in objective.state_dict().items()}
    for repeat in range(repeats):
        torch.manual_seed(seed * 100_003 + repeat)
        objective.load_state_dict(averages)
        loss, _ = objective(model, batch)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        spread.add({name: own for name, own in zip(parameters, gradients) if own is not None})
    objective.load_state_dict(averages)
    return spread


def measure(
    model: CaptionModel, settings: Settings, pad: int, batches: Sequence[Batch], warm_up: Sequence[Batch], repeats: int
) -> dict[str, Any]:
    """Every setting's variance at these weights."""
    found: dict[str, Any] = {}
    for name, changes in SETTINGS.items():
        objective = objective_for(model, settings, pad, changes, warm_up)
        found.setdefault("baseline", round(float(objective.baseline), 4))  # the paper's
        spreads = [
            spread_of(model, objective, batch, repeats, seed)
            for seed, batch in enumerate(track(batches, name, len(batches)))
        ]
        found[name] = {"attention": _mean(spreads, ATTENTION), "all": _mean(spreads, ("",))}
    return found


def _mean(spreads: Sequence[Spread], prefixes: Sequence[str]) -> dict[str, float]:
    variances, lengths = zip(*(spread.read(prefixes) for spread in spreads))
    return {
        "variance": float(f"{sum(variances) / len(spreads):.4g}"),
        "squared mean": float(f"{sum(lengths) / len(spreads):.4g}"),
    }


class Photos:
    """Features by position in the list of examples: from the training run's cache, or computed where there is none."""

    def __init__(self, checkpoint: Checkpoint, examples: Sequence[Example]) -> None:
        self.captioner, self.examples = Captioner([TorchBackend(checkpoint)]), examples
        self.cache = FeatureCache(checkpoint.model.encoder, examples)

    def __call__(self, indices: Sequence[int], rng: random.Random) -> ImageFeatures:
        if self.cache.complete:
            return self.cache.features(indices)
        features = self.captioner.encode([self.captioner.prepare(self.examples[index].image) for index in indices])[0]
        return ImageFeatures(features.grid.clone(), features.pooled.clone(), features.height, features.width)


def experiment(folder: Path, dataset: Dataset, split: str, batches: int, captions: int, repeats: int) -> dict[str, Any]:
    """What ``gradient_variance.json`` holds."""
    checkpoint, recipe = load_checkpoint(folder), recipe_of(folder)
    settings = recipe.objective
    if not isinstance(settings, Settings):
        raise ConfigError(f"{folder} was trained by {settings.name!r}: give a run of objective 'hard-attention'")
    if repeats < 2 or batches < 1:
        raise ConfigError(f"{batches} batches and {repeats} repeats: a variance needs at least 1 and 2")
    examples = dataset.examples(split)
    tokens = [[checkpoint.tokenizer.encode(text) for text in example.captions] for example in examples]
    loader = CaptionLoader(
        tokens, Photos(checkpoint, examples), captions, choice="all", by_length=True, pad=checkpoint.tokenizer.pad
    )
    drawn = list(itertools.islice(loader.epoch(0), batches + WARM_UP))
    measured, warm_up = drawn[:batches], drawn[batches:] or drawn
    pad, decoder = checkpoint.tokenizer.pad, checkpoint.model.decoder
    torch.manual_seed(recipe.training.seed)
    weights = {"trained": decoder, "fresh": build_decoder(**decoder.spec)}
    return {
        "checkpoint": checkpoint_hash(folder),
        "split": split,
        "batches": len(measured),
        "captions": captions,
        "repeats": repeats,
        "weights": {
            name: measure(
                CaptionModel(checkpoint.model.encoder, without_dropout(own)), settings, pad, measured, warm_up, repeats
            )
            for name, own in weights.items()
        },
    }


def main(arguments: Sequence[str]) -> None:
    reader = parser(__doc__)
    reader.add_argument("model", type=Path, help="folder of a run with objective hard-attention")
    reader.add_argument("--data", required=True, help="the dataset's folder")
    reader.add_argument("--split", default="train", help="where the captions come from, train if not given")
    reader.add_argument("--batches", type=int, default=2)
    reader.add_argument("--captions", type=int, default=16, help="in a batch")
    reader.add_argument("--repeats", type=int, default=32, help="draws of each gradient")
    reader.add_argument("--results", type=Path, default=RESULTS, help="where it is written; elsewhere pages stay as is")
    given = reader.parse_args(arguments)
    dataset = load_dataset(given.data)
    values = experiment(given.model, dataset, given.split, given.batches, given.captions, given.repeats)
    write_json(given.results / "gradient_variance.json", values)
    if given.results.resolve() == RESULTS:
        write_pages()
    for weights, settings in values["weights"].items():
        for name in SETTINGS:
            attention, every = (settings[name][part]["variance"] for part in ("attention", "all"))
            print(f"{weights:8} {name:37} attention {attention:.3g}, all {every:.3g}")


if __name__ == "__main__":
    raise SystemExit(run(main))
