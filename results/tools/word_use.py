"""How many different words a captioner uses, and what it costs to make it use more.

    python results/tools/word_use.py runs/dinov2-coco-long --data coco/ --data flickr8k/ --match 1
    python results/tools/word_use.py runs/dinov2-coco-long --data coco/ --data flickr8k/ --average runs/dinov2-coco=0.5

Self-critical training narrows the vocabulary. Three ways to widen it again, none of which trains anything:

- --average RUN=SHARE averages the weights with those of another run, for instance the stage before;
- --frequency T favours rare content words: T times the logarithm of the usual count over the word's own count in the
  training captions is added to its logit;
- --match T favours content words that the model expects less often than people write them, both counted on training
  captions: T times the logarithm of their ratio is added.

Prints the scores (times 100) and the number of different words on the first val photos of each dataset.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from add_row import BATCH, captions_from_cache
from script import named, parser, run
from sightline.data import Dataset, Example, load_dataset
from sightline.data.loader import pad_captions
from sightline.engine.captioner import Captioner
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ConfigError
from sightline.evaluation.metrics import score
from sightline.nn.checkpoint import CaptionModel, load_checkpoint
from sightline.nn.hub import resolve
from sightline.tokenizers import Tokenizer
from sightline.training.feature_cache import PRECISIONS, FeatureCache
from sightline.training.objectives.self_distillation import content_words, missed_words
from sightline.types import ImageFeatures

RARE = 5  # a word counts as if it occurred at least so often
COUNTED = 2500  # training photos of each dataset, two captions each
JUDGES = 5  # captions of a photo that self-critical training uses, too: their features are cached


def average(model: CaptionModel, other: CaptionModel, share: float) -> None:
    """Weights between the two models': none of the other's at 0, all at 1."""
    own, others = model.state_dict(), other.state_dict()
    if own.keys() != others.keys():
        raise ConfigError("the weights of different architectures cannot be averaged")
    for key, value in own.items():
        if value.is_floating_point():
            value.lerp_(others[key], share)


def frequency_shift(captioner: Captioner, datasets: Sequence[Dataset]) -> Tensor:
    counts = torch.zeros(len(captioner.tokenizer.tokens))
    for dataset in datasets:
        for example in dataset.examples("train"):
            for text in example.captions:
                counts += torch.bincount(torch.tensor(captioner.tokenizer.encode(text)[1:]), minlength=len(counts))
    content, logarithms = content_words(captioner.tokenizer), counts.clamp(min=RARE).log()
    usual = (counts * logarithms)[content].sum() / counts[content].sum()
    return torch.where(content, usual - logarithms, 0.0)


def match_shift(
    tokenizer: Tokenizer, model: CaptionModel, photos: Sequence[Sequence[Example]], precision: str = "bfloat16"
) -> Tensor:
    """How often people write each word over how often the model expects it, on some photos of each dataset."""

    def batches() -> Iterator[tuple[ImageFeatures, Tensor]]:
        for dataset in photos:
            chosen = random.Random(0).sample(dataset, min(COUNTED, len(dataset)))
            cache = FeatureCache(model.encoder, chosen, grid=model.decoder.uses_grid, precision=precision).fill()
            for start in range(0, len(chosen), BATCH):
                rows = range(start, min(start + BATCH, len(chosen)))
                for caption in (0, 1):
                    texts = [[tokenizer.encode(chosen[row].captions[caption])] for row in rows]
                    yield cache.features(rows), pad_captions(texts, tokenizer.pad)

    return missed_words(model, tokenizer, batches())


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__)
    options.add_argument("model", help="a run, or default")
    options.add_argument("--data", action="append", required=True)
    options.add_argument("--photos", type=int, default=500, help="val photos of each dataset")
    options.add_argument("--average", metavar="RUN=SHARE")
    options.add_argument("--frequency", type=float, default=0.0)
    options.add_argument("--match", type=float, default=0.0)
    options.add_argument("--precision", choices=PRECISIONS, default="bfloat16", help="of the features")
    chosen = options.parse_args(arguments)
    checkpoint = load_checkpoint(resolve(chosen.model))
    model, datasets = checkpoint.model, [load_dataset(data) for data in chosen.data]
    captioner = Captioner([TorchBackend(checkpoint)])
    if chosen.average:
        ((other, share),) = named([chosen.average]).items()
        average(model, load_checkpoint(other).model, float(str(share)))
    shift = torch.zeros(len(captioner.tokenizer.tokens))
    if chosen.frequency:
        shift += chosen.frequency * frequency_shift(captioner, datasets)
    if chosen.match:
        judged = [[e for e in dataset.examples("train") if len(e.captions) >= JUDGES] for dataset in datasets]
        shift += chosen.match * match_shift(captioner.tokenizer, model, judged, chosen.precision)
    output = model.decoder.get_submodule("output")
    assert isinstance(output, torch.nn.Linear)
    with torch.no_grad():
        output.bias.add_(shift)
    for dataset in datasets:
        examples = dataset.examples("val")[: chosen.photos]
        captions = captions_from_cache(captioner, examples, chosen.precision)
        texts = [captions[example.name] for example in examples]
        found = score(texts, [example.captions for example in examples], metrics=["bleu", "meteor", "cider"])
        scores = ", ".join(f"{name} {100 * found[name]:.1f}" for name in ("cider", "bleu_4", "meteor"))
        print(f"{dataset.name}: {scores}, {len({word for text in texts for word in text.split()})} words")


if __name__ == "__main__":
    raise SystemExit(run(main))
