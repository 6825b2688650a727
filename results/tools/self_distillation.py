"""Correct how a trained captioner chooses its words: it is distilled from itself, its word distributions corrected.

    python results/tools/self_distillation.py default runs/corrected --data coco/ --data flickr8k/ --match coco=2

Self-critical training leaves a captioner with few words and some broken sentences. Here a copy of the model is the
teacher (Hinton et al., 2015), after four corrections of what it gives each next word:

- content words that people use more often than the model does are favoured on the photos of the datasets named by
  ``--match``, each with its strength, as `word_use.py --match` does on all photos;
- no caption ends after a word that ends hardly any human caption: "in front of a";
- "a" and "an" agree with the next word as people write it: the probability of "a orange" goes to "an orange";
- no content word is said again within three words: "a red red tie".

The student starts with the same weights. It learns from one human caption of each photo and from one that it draws
itself, in steps of so many photos. Only the decoder is trained, and nothing needs to be scored meanwhile.
"""

from __future__ import annotations

import copy
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from script import parser, run
from sightline.data import Example, check_sources, load_datasets
from sightline.data.loader import pad_captions
from sightline.decoding import DecodingOptions, sample
from sightline.engine.torch_backend import TorchDecoder
from sightline.io.progress import track
from sightline.nn.checkpoint import load_checkpoint, save_checkpoint
from sightline.nn.hub import resolve
from sightline.tokenizers import Tokenizer
from sightline.training.feature_cache import PRECISIONS, FeatureCache
from sightline.training.optimization import Schedule, build_optimizer
from word_use import JUDGES, content_words, match_shift

log = logging.getLogger("sightline.results")
TEMPERATURE = 0.7  # of the captions that the student draws
FREQUENT = 500  # occurrences in the training captions from which on a word's company is known
ENDS = 0.002  # share of a word's occurrences that end a caption, below which it ends none
NEAR = 3  # words within which none is repeated


@dataclass(frozen=True)
class Corrections:
    """What the training captions say of each word of the vocabulary."""

    shift: Tensor  # (V,) added to the logits, times the photo's strength
    never_last: Tensor  # (V,) no caption ends after it
    content: Tensor  # (V,)
    article: dict[int, Tensor]  # "a" and "an": (V,) the words before which people write the other one
    end: int

    def __call__(self, logits: Tensor, tokens: Tensor, strength: Tensor) -> Tensor:
        """Corrected probabilities (R, T, V) of each row's next words after ``tokens`` (R, T)."""
        logits = logits + strength[:, None, None] * self.shift
        forbidden = torch.zeros_like(logits, dtype=torch.bool)
        for near in range(NEAR):
            earlier = torch.roll(tokens, near, dims=1)
            earlier[:, :near] = Tokenizer.pad
            forbidden.scatter_(2, earlier[..., None], self.content[earlier][..., None])
        forbidden[..., self.end] = self.never_last[tokens]
        for article, others in self.article.items():
            forbidden |= (tokens == article)[..., None] & others
        # What an article's successor would have cost it goes to the other article.
        before = logits.softmax(-1)
        probabilities = logits.masked_fill(forbidden, float("-inf")).softmax(-1)
        for article, others in self.article.items():
            (other,) = self.article.keys() - {article}
            wrong = (before[:, 1:] * others).sum(-1) * (tokens[:, 1:] == article)  # (R, T - 1)
            moved = probabilities[:, :-1, article] * wrong
            probabilities[:, :-1, article] -= moved
            probabilities[:, :-1, other] += moved
        return probabilities


def corrections(tokenizer: Tokenizer, examples: Sequence[Example], shift: Tensor) -> Corrections:
    words = tokenizer.tokens
    pairs: Counter[tuple[int, int]] = Counter()
    counts: Counter[int] = Counter()
    for example in examples:
        for text in example.captions:
            tokens = tokenizer.encode(text)
            counts.update(tokens)
            pairs.update(pairwise(tokens))
    never_last = torch.tensor(
        [counts[word] >= FREQUENT and pairs[word, tokenizer.end] < ENDS * counts[word] for word in range(len(words))]
    )
    article = {}
    if {"a", "an"} <= tokenizer.ids.keys():
        a, an = tokenizer.ids["a"], tokenizer.ids["an"]
        after = [(pairs[a, word], pairs[an, word]) for word in range(len(words))]
        article = {a: torch.tensor([x < y for x, y in after]), an: torch.tensor([x > y for x, y in after])}
    return Corrections(shift, never_last, content_words(tokenizer), article, tokenizer.end)


def train(
    model: str,
    target: Path,
    data: Sequence[str],
    match: dict[str, float],
    steps: int,
    batch_size: int,
    learning_rate: float,
    precision: str,
    seed: int,
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    checkpoint = load_checkpoint(resolve(model))
    tokenizer, decoder = checkpoint.tokenizer, checkpoint.model.decoder
    teacher = copy.deepcopy(decoder).eval().requires_grad_(False)
    dataset = load_datasets(data)
    every = dataset.examples("train")
    photos = [example for example in every if len(example.captions) >= JUDGES]
    check_sources("--match", match, [example.source for example in photos])
    by_source = [[e for e in photos if e.source == name] for name in dict.fromkeys(e.source for e in photos)]
    shift = match_shift(tokenizer, checkpoint.model, by_source, precision)
    correct = corrections(tokenizer, every, shift)
    named = [word for word, last in zip(tokenizer.tokens, correct.never_last) if last]
    log.info("%d words end no caption: %s", len(named), ", ".join(named[:20]))
    strengths = torch.tensor([match.get(example.source, 0.0) for example in photos])
    captions = [[tokenizer.encode(text) for text in example.captions] for example in photos]
    cache = FeatureCache(checkpoint.model.encoder, photos, grid=decoder.uses_grid, precision=precision).fill()

    options = DecodingOptions(
        sample=True, temperature=TEMPERATURE, max_length=tokenizer.max_length, allow_unknown=True, want_attention=False
    )
    decoder.eval().requires_grad_(True)  # no dropout: the teacher has none
    optimizer = build_optimizer(decoder, "adamw", learning_rate, 0.0, learning_rate)
    schedule = Schedule(optimizer, "cosine", steps // 20, steps)
    order: list[int] = []
    for step in track(range(steps), "steps", steps):
        if len(order) < batch_size:
            order = rng.sample(range(len(photos)), len(photos))
        batch, order = order[:batch_size], order[batch_size:]
        features = cache.features(batch)
        with torch.autocast("cpu", torch.bfloat16):
            drawn = sample(TorchDecoder(decoder), features, count=1, options=options).tolist()
            own = [[token for token in row if token != tokenizer.pad] for row in drawn]
            tokens = pad_captions([[rng.choice(captions[i]), mine] for i, mine in zip(batch, own)], tokenizer.pad)
            inputs, real = tokens[:, :-1], tokens[:, 1:] != tokenizer.pad
            with torch.no_grad():
                logits = teacher(features, inputs).logits.float()
                target_probabilities = correct(logits, inputs, strengths[batch].repeat_interleave(2))[real]  # (n, V)
            log_probs = decoder(features, inputs).logits.float()[real].log_softmax(-1)
        divergence = torch.nn.functional.kl_div(log_probs, target_probabilities, reduction="sum") / len(log_probs)
        optimizer.zero_grad()
        divergence.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            log.info("step %d: divergence %.4f", step + 1, divergence.item())
    save_checkpoint(target, checkpoint)


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__)
    options.add_argument("model", help="a run, or default")
    options.add_argument("output", type=Path)
    options.add_argument("--data", action="append", required=True)
    options.add_argument("--match", action="append", default=[], metavar="DATASET=STRENGTH")
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--batch-size", type=int, default=32)
    options.add_argument("--learning-rate", type=float, default=3e-4)
    options.add_argument("--precision", choices=PRECISIONS, default="int8", help="of the features")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args(arguments)
    match = {name: float(value) for name, _, value in (pair.partition("=") for pair in chosen.match)}
    train(
        chosen.model, chosen.output, chosen.data, match, chosen.steps, chosen.batch_size, chosen.learning_rate,
        chosen.precision, chosen.seed,
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(main))
