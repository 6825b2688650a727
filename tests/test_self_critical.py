"""Self-critical training: its gradient estimator against exactly enumerated gradients; rewards and baselines."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_objectives import Tiny, batch_of, gradient, some_features

from sightline.data.loader import Batch
from sightline.decoding import sampling
from sightline.errors import ConfigError
from sightline.evaluation.metrics.cider import CiderReward
from sightline.tokenizers import TOKENIZERS
from sightline.training.objectives.self_critical import END, SelfCritical


@pytest.fixture
def critic():
    """A model over two words, its tokenizer, and photos whose captions are the judges."""
    tokenizer = TOKENIZERS["word"].train(["red dog", "dog red dog"], min_count=1, max_length=4)
    model = Tiny("transformer", tokenizer.size, max_length=4, width=8, heads=2, blocks=1)
    with torch.no_grad():
        model.decoder.output.bias[tokenizer.unknown] = -1e4  # leaves few captions to enumerate
    references = [["red dog", "a red dog"], ["dog dog", "red"], ["the sea"]]
    objects = [None] * len(references)
    sources = [""] * len(references)
    context = SimpleNamespace(tokenizer=tokenizer, references=references, sources=sources, objects=objects)
    return model, tokenizer, context


def every_caption(tokenizer):
    """All token rows a model with room for four can draw."""
    words = range(4, tokenizer.size)
    for length in range(3):
        for middle in itertools.product(words, repeat=length):
            yield [tokenizer.start, *middle, tokenizer.end] + [tokenizer.pad] * (2 - length)
    for cut in itertools.product(words, repeat=3):
        yield [tokenizer.start, *cut]


def log_probability(model, tokens, temperature=1.0):
    logits = model(some_features(), tokens[:, :-1]).logits / temperature
    logits = logits.index_fill(-1, torch.tensor([0, 1]), float("-inf"))  # pad and start are never drawn
    log_probs = logits.log_softmax(-1)
    chosen = log_probs.gather(2, tokens[:, 1:, None]).squeeze(2)
    return chosen[tokens[:, 1:] != 0].sum()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("baseline", ["greedy", "mean"])
def test_the_self_critical_estimator_is_unbiased(critic, baseline, temperature):
    """Over all captions (or pairs of them) the model can draw, the gradients sum to that of the expected reward."""
    model, tokenizer, context = critic
    samples = 1 if baseline == "greedy" else 2
    objective = SelfCritical(pad=0, samples=samples, baseline=baseline, temperature=temperature)
    objective.prepare(model, context)
    captions = [torch.tensor([row]) for row in every_caption(tokenizer)]
    probabilities = [log_probability(model, caption, temperature).exp() for caption in captions]
    assert float(sum(probabilities).detach()) == pytest.approx(1, abs=1e-9)

    rewards = [float(objective._rewards([0], objective._texts(caption))[0]) for caption in captions]
    exact = -gradient(sum(probability * reward for probability, reward in zip(probabilities, rewards)), model)

    estimate = 0.0
    for drawn in itertools.product(range(len(captions)), repeat=samples):
        probability = np.prod([float(probabilities[i]) for i in drawn])
        objective._draw = lambda *_, drawn=drawn: torch.cat([captions[i] for i in drawn])
        loss, _ = objective(model, batch_of([[1, 4, 2]]))
        estimate = estimate + probability * gradient(loss, model)
    torch.testing.assert_close(estimate, exact, rtol=1e-5, atol=1e-7)
    assert exact.abs().max() > 1e-3


def test_the_end_counts_so_a_caption_cut_short_scores_less(critic):
    model, tokenizer, context = critic
    objective = SelfCritical(pad=0)
    objective.prepare(model, context)
    red, dog = tokenizer.ids["red"], tokenizer.ids["dog"]
    ended, cut = torch.tensor([[1, red, dog, 2]]), torch.tensor([[1, red, dog, 0]])
    rewards, _ = objective._rewards([0, 0], objective._texts(torch.cat([ended, cut])))
    assert rewards[0] > rewards[1]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_drawn_caption_is_scored_by_the_policy_that_drew_it(critic, monkeypatch, temperature):
    """What the gradient takes for a caption's log-probability is that of the sampler's own draws."""
    model, tokenizer, context = critic
    with torch.no_grad():
        model.decoder.output.bias[[tokenizer.pad, tokenizer.start]] = 2.0  # likely, were they allowed
    objective = SelfCritical(pad=0, samples=6, temperature=temperature)
    objective.prepare(model, context)
    steps = []
    weights_of = sampling.sampling_weights
    monkeypatch.setattr(sampling, "sampling_weights", lambda *given: steps.append(weights_of(*given)) or steps[-1])
    torch.manual_seed(3)
    tokens = objective._draw(model.decoder.eval(), some_features())
    nll = objective._policy_nll(model(some_features(), tokens[:, :-1]).logits, tokens)
    assert len({tuple(row) for row in tokens.tolist()}) > 2
    for row, caption in enumerate(tokens[:, 1:].tolist()):
        drawn = [token for token in caption if token != tokenizer.pad]
        probabilities = [steps[t][row if t else 0, token] for t, token in enumerate(drawn)]
        assert -nll[row].sum().item() == pytest.approx(np.log(probabilities).sum(), abs=1e-5)


@pytest.mark.parametrize(
    ("caption", "labels", "false"),
    [
        ("a dog on a couch", {"dog", "couch"}, 0),
        ("a dog on a couch", {"dog"}, 1),
        ("a dog and a cat on a couch", {"dog"}, 2),
        ("two dogs and a dog and a puppy", {"cat"}, 1),  # one object, however often and whatever it is called
        ("a man on a bike", {"person", "motorcycle"}, 0),  # a word of several meanings: one of them is enough
        ("a man without a dog", {"person"}, 0),
        ("a red meadow", {"dog"}, 0),
        ("a dog on a couch", set(), 2),
        ("a dog on a couch", None, 0),  # nobody labelled this photo
    ],
)
def test_the_truth_penalty_counts_distinct_objects_that_the_photo_lacks(caption, labels, false):
    tokenizer = TOKENIZERS["word"].train([caption, "a cat"], min_count=1, max_length=12)
    objects = [None if labels is None else frozenset(labels), frozenset({"cat"})]
    context = SimpleNamespace(tokenizer=tokenizer, references=[[caption], ["a cat"]], sources=["", ""], objects=objects)
    tokens = torch.tensor([tokenizer.encode(caption)])
    plain, careful = SelfCritical(pad=0), SelfCritical(pad=0, truth_penalty=0.25)
    for objective in (plain, careful):
        objective.prepare(None, context)
    (before, none), (after, found) = (own._rewards([0], own._texts(tokens)) for own in (plain, careful))
    assert none.item() == 0 and found.item() == false
    assert after.item() == pytest.approx(before.item() - 0.25 * false)
    assert before.item() > 1


def test_bleu_is_added_to_the_reward_by_its_weight():
    references = [["a red dog runs"], ["a cat"]]
    tokenizer = TOKENIZERS["word"].train([text for texts in references for text in texts], min_count=1, max_length=8)
    context = SimpleNamespace(tokenizer=tokenizer, references=references, sources=["", ""], objects=[None, None])
    plain, mixed = SelfCritical(pad=0), SelfCritical(pad=0, bleu=0.5)
    for objective in (plain, mixed):
        objective.prepare(None, context)
    (before, _), (after, _) = (own._rewards([0, 1], [["a", "red", "dog", END]] * 2) for own in (plain, mixed))
    # "a red dog <end>" against "a red dog runs <end>": 4 of 4 words, 2 of 3, 1 of 2 and 0 of 1 longer n-grams, each
    # with one more; a word too short. Against "a cat <end>": 2 of 4 words, no longer n-gram, long enough.
    bleu = [(3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4) * math.exp(1 - 5 / 4), (2 / 4 * 1 / 4 * 1 / 3 * 1 / 2) ** (1 / 4)]
    assert (after - before).tolist() == pytest.approx([0.5 * value for value in bleu], abs=1e-6)


def test_meteor_is_added_to_the_reward_by_its_weight():
    """Synonyms count, and the end is no word: "a red dog" and "a red hound" against "a red dog", cut short or ended."""
    references = [["a red dog"], ["a cat"]]
    tokenizer = TOKENIZERS["word"].train(["a red dog hound", "a cat"], min_count=1, max_length=8)
    context = SimpleNamespace(tokenizer=tokenizer, references=references, sources=["", ""], objects=[None, None])
    plain, mixed = SelfCritical(pad=0), SelfCritical(pad=0, meteor=2.0)
    for objective in (plain, mixed):
        objective.prepare(None, context)
    texts = [["a", "red", "dog", END], ["a", "red", "dog"], ["a", "red", "hound", END], ["a", "red", "cat", END]]
    (before, _), (after, _) = (own._rewards([0] * 4, texts) for own in (plain, mixed))
    same, cut, synonym, other = ((after - before) / 2).tolist()
    assert same == pytest.approx(1) == pytest.approx(cut)
    assert other < 0.6 < synonym < 1


def test_each_source_of_a_mixture_counts_its_own_document_frequencies():
    kennel, zoo = [["a red dog"], ["a big dog"], ["a dog"]], [["a red cat"], ["the dog"], ["a big cow"]]
    tokenizer = TOKENIZERS["word"].train([text for texts in kennel + zoo for text in texts], min_count=1, max_length=8)
    objective = SelfCritical(pad=0)
    sources = ["kennel", "zoo", "kennel", "zoo", "kennel", "zoo"]
    references = [texts for pair in zip(kennel, zoo) for texts in pair]
    objective.prepare(
        None, SimpleNamespace(tokenizer=tokenizer, references=references, sources=sources, objects=[None] * 6)
    )
    texts = [["red", "dog", "<end>"], ["red", "cat", "<end>"], ["dog", "<end>"]]
    found, _ = objective._rewards([0, 1, 3], texts)

    def ended(dataset):
        return CiderReward([[[*text.split(), "<end>"] for text in captions] for captions in dataset])

    alone = [*ended(kennel).score([0], texts[:1]), *ended(zoo).score([0, 1], texts[1:])]
    assert found.tolist() == pytest.approx(alone)
    assert found.tolist() != pytest.approx(ended(references).score([0, 1, 3], texts))


def test_the_greedy_baseline_pays_the_truth_penalty_too(critic):
    """Draws of exactly the greedy caption have no advantage over it, whatever they name."""
    model, tokenizer, context = critic
    dog = tokenizer.ids["dog"]
    with torch.no_grad():
        model.decoder.output.bias[dog] = 3.0  # the greedy caption is "dog dog dog", though others are possible
    context.objects = [frozenset({"cat"})] * 3
    objective = SelfCritical(pad=0, samples=2, baseline="greedy", truth_penalty=5.0)
    objective.prepare(model, context)
    objective._draw = lambda *_: torch.tensor([[tokenizer.start, dog, dog, dog]] * 2)
    loss, logs = objective(model, batch_of([[1, 4, 2]]))
    assert logs["nll"].item() > 1e-3, "the draws must be uncertain for this to be a test"
    assert logs["false_objects"].item() == 1 and logs["reward"].item() < -3
    assert gradient(loss, model).abs().max() < 1e-9


def test_draws_of_equal_reward_have_no_advantage(critic, monkeypatch):
    """A baseline of the wrong sign leaves the estimate unbiased but far noisier: equal rewards would move the model."""
    model, _, context = critic
    objective = SelfCritical(pad=0, samples=4)
    objective.prepare(model, context)
    monkeypatch.setattr(objective, "_rewards", lambda photos, texts: (torch.full((len(texts),), 3.0), torch.zeros(4)))
    loss, _ = objective(model, batch_of([[1, 4, 2]]))
    assert gradient(loss, model).abs().max() < 1e-9
    others = objective._baseline(model.decoder, None, None, torch.tensor([[1.0, 2.0, 3.0, 6.0]]))
    assert others.flatten().tolist() == pytest.approx([11 / 3, 10 / 3, 3, 2])


def test_rewards_are_moved_to_the_model_s_device(critic, monkeypatch):
    model, _, context = critic
    objective = SelfCritical(pad=0, samples=4)
    objective.prepare(model, context)
    monkeypatch.setattr(objective, "_policy_nll", lambda logits, tokens: torch.ones(4, 1, device="meta"))
    loss, _ = objective(model, batch_of([[1, 4, 2]]))
    assert loss.device.type == "meta"


def test_the_self_critical_loss_is_a_mean_over_draws_however_many_captions_a_photo_has(critic):
    model, tokenizer, context = critic
    red, dog = tokenizer.ids["red"], tokenizer.ids["dog"]
    draws = torch.tensor([[1, red, dog, 2], [1, dog, 2, 0]])
    objective = SelfCritical(pad=0, samples=2)
    objective.prepare(model, context)
    objective._draw = lambda *_: draws
    once, logs = objective(model, batch_of([[1, 4, 2]]))
    twice, _ = objective(model, batch_of([[1, 4, 2], [1, 5, 2]]))
    of_four = Batch(**{**batch_of([[1, 4, 2]]).__dict__, "caption_count": 4})  # one of four photos of an update
    assert twice.item() == once.item() == pytest.approx(4 * objective(model, of_four)[0].item())
    assert abs(once.item()) > 1e-3
    log_chances = [log_probability(model, row[None]).item() for row in draws]
    assert logs["nll"].item() == pytest.approx(-sum(log_chances) / 5)  # three tokens and two; padding does not count


def test_the_truth_penalty_needs_labels(critic):
    model, _, context = critic
    with pytest.raises(ConfigError, match=r"objective\.truth_penalty=0.5 needs photos whose objects are labelled"):
        SelfCritical(pad=0, truth_penalty=0.5).prepare(model, context)


def test_self_critical_training_raises_the_reward(critic):
    model, _, context = critic
    objective = SelfCritical(pad=0, samples=5)
    objective.prepare(model, context)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    rewards = []
    for _ in range(40):
        loss, logs = objective(model, batch_of([[1, 4, 2]]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rewards.append(float(logs["reward"]))
    assert np.mean(rewards[-5:]) > 2 * np.mean(rewards[:5])


def test_one_sample_has_no_other_to_compare_with():
    with pytest.raises(ConfigError, match="samples"):
        SelfCritical(pad=0, samples=1, baseline="mean")
