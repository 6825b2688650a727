"""Objectives: both score-function estimators against exactly enumerated gradients, and the rest by hand."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sightline.data.loader import Batch
from sightline.decoding import sampling
from sightline.errors import ConfigError
from sightline.evaluation.metrics.cider import CiderReward
from sightline.nn.decoders import build_decoder
from sightline.tokenizers import TOKENIZERS
from sightline.training.objectives import OBJECTIVES, distillation
from sightline.training.objectives.base import CrossEntropy, doubly_stochastic
from sightline.training.objectives.distillation import Distillation
from sightline.training.objectives.hard_attention import HardAttention
from sightline.training.objectives.self_critical import SelfCritical
from sightline.types import DecoderOutput, ImageFeatures

CELLS, DEPTH = 3, 4


class Tiny(nn.Module):
    """A decoder over fixed features, shaped like a CaptionModel."""

    def __init__(self, name: str, vocabulary: int, max_length: int = 6, **options):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = SimpleNamespace(dimension=DEPTH)
        self.decoder = build_decoder(name, DEPTH, vocabulary, max_length, dropout=0.0, **options).double()

    def features(self, photos):
        return photos

    def forward(self, photos, tokens) -> DecoderOutput:
        return self.decoder(self.features(photos), tokens)


def some_features(photos: int = 1) -> ImageFeatures:
    generator = torch.Generator().manual_seed(1)
    grid = torch.randn(photos, CELLS, DEPTH, generator=generator, dtype=torch.float64)
    return ImageFeatures(grid, grid.mean(1), 1, CELLS)


def batch_of(tokens, photos: int = 1) -> Batch:
    tokens = torch.as_tensor(tokens)
    words = int((tokens[:, 1:] != 0).sum())
    return Batch(some_features(photos), tokens, tuple(range(photos)), words, len(tokens))


def gradient(value: torch.Tensor, model: nn.Module) -> torch.Tensor:
    grads = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return torch.cat([
        torch.zeros(p.numel(), dtype=torch.float64) if g is None else g.flatten()
        for p, g in zip(model.parameters(), grads)
    ])  # fmt: skip


def test_every_objective_is_listed_by_its_recipe_name():
    assert set(OBJECTIVES) == {"cross-entropy", "hard-attention", "self-critical", "distillation"}


# -- cross-entropy ----------------------------------------------------------------------------------------------------


def test_cross_entropy_ignores_padding_and_counts_every_word_once():
    model = Tiny("transformer", 8, width=8, heads=2, blocks=1)
    whole = batch_of([[1, 5, 6, 2], [1, 7, 2, 0]])
    loss, _ = CrossEntropy(pad=0)(model, whole)
    apart = [CrossEntropy(pad=0)(model, batch_of([row]))[0] * n for row, n in (([1, 5, 6, 2], 3), ([1, 7, 2], 2))]
    torch.testing.assert_close(loss, sum(apart) / 5)


def test_label_smoothing_mixes_in_the_uniform_distribution():
    model = Tiny("transformer", 8, width=8, heads=2, blocks=1)
    batch = batch_of([[1, 5, 6, 2]])
    log_probs = model(batch.photos, batch.tokens[:, :-1]).logits.log_softmax(-1)
    expected = -(0.9 * log_probs[0, [0, 1, 2], [5, 6, 2]] + 0.1 * log_probs[0].mean(-1)).mean()
    torch.testing.assert_close(CrossEntropy(pad=0, label_smoothing=0.1)(model, batch)[0], expected)


def test_the_doubly_stochastic_penalty_is_zero_only_when_attention_to_every_cell_sums_to_one():
    even = torch.full((1, 3, 3), 1 / 3)
    words = torch.ones(1, 3, dtype=torch.bool)
    assert doubly_stochastic(even, words).item() == pytest.approx(0)
    stuck = torch.tensor([[[1.0, 0, 0]] * 3])
    assert doubly_stochastic(stuck, words).item() == pytest.approx((1 - 3) ** 2 + 1 + 1)


def test_tau_is_what_attention_to_every_cell_should_sum_to():
    even = torch.full((1, 6, 3), 1 / 3)
    words = torch.ones(1, 6, dtype=torch.bool)
    assert doubly_stochastic(even, words, tau=2.0).item() == pytest.approx(0, abs=1e-9)
    assert doubly_stochastic(even, words, tau=1.0).item() == pytest.approx(3)
    model = Tiny("attention-lstm", 8, width=8, hidden=8, attention=4)
    batch = batch_of([[1, 5, 6, 2]])
    attention = model(batch.photos, batch.tokens[:, :-1]).attention
    for objective in (CrossEntropy, HardAttention):
        plain, penalised = (
            objective(pad=0, doubly_stochastic=weight, tau=2.5).double()(model, batch)[0] for weight in (0.0, 1.0)
        )
        expected = (2.5 - attention.sum(1)).square().sum() / 3
        torch.testing.assert_close(penalised - plain, expected)


@pytest.mark.parametrize("objective", [CrossEntropy, HardAttention])
def test_a_tau_below_what_the_paper_allows_is_warned_of(objective, caplog):
    model = Tiny("attention-lstm", 8, width=8, hidden=8, attention=4, mode="hard")
    model.encoder = SimpleNamespace(dimension=512, height=14, width=14)  # L / D = 0.38
    for tau in (0.4, 1.0):
        objective(pad=0, doubly_stochastic=1.0, tau=tau).prepare(model, None)
    objective(pad=0, doubly_stochastic=0.0, tau=0.1).prepare(model, None)
    assert not caplog.records
    objective(pad=0, doubly_stochastic=1.0, tau=0.3).prepare(model, None)
    assert "objective.tau=0.3 is below L / D = 14 x 14 / 512 = 0.38" in caplog.text


def test_the_doubly_stochastic_penalty_needs_attention():
    with pytest.raises(ConfigError, match="doubly_stochastic"):
        CrossEntropy(pad=0, doubly_stochastic=1.0)(Tiny("lstm", 8, width=8, hidden=8).eval(), batch_of([[1, 5, 2]]))


# -- hard attention ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hard():
    model = Tiny("attention-lstm", 7, mode="hard", width=5, hidden=5, attention=4)
    model.train()
    return model


def each_path(model, batch, objective, monkeypatch):
    """For every sequence of locations: the probability of it, log p(y|s), and the objective's loss."""
    steps = batch.tokens.shape[1] - 1
    for path in itertools.product(range(CELLS), repeat=steps):
        locations = iter(path)
        monkeypatch.setattr(
            torch, "multinomial", lambda weights, n, locations=locations: torch.full((len(weights), 1), next(locations))
        )
        output = model(batch.photos, batch.tokens[:, :-1])
        probability = output.extras["location_log_prob"].sum().exp()
        likelihood = output.logits.log_softmax(-1).gather(2, batch.tokens[:, 1:, None]).sum()
        locations = iter(path)
        monkeypatch.setattr(
            torch, "multinomial", lambda weights, n, locations=locations: torch.full((len(weights), 1), next(locations))
        )
        loss, _ = objective(model, batch)
        yield probability, likelihood, loss


def test_hard_attention_adds_the_doubly_stochastic_penalty_of_each_word(hard):
    batch = batch_of([[1, 4, 5, 2], [1, 6, 2, 0]], photos=2)
    hard.eval()  # without draws
    plain, penalised = (HardAttention(pad=0, doubly_stochastic=weight)(hard, batch)[0] for weight in (0.0, 3.0))
    attention = hard(batch.photos, batch.tokens[:, :-1]).attention
    penalty = 3 * doubly_stochastic(attention, batch.tokens[:, 1:] != 0).sum() / 5
    assert (penalised - plain).item() == pytest.approx(penalty.item())


@pytest.mark.parametrize("guess", [0.0, -1.7])
@pytest.mark.parametrize("baseline", ["own", "average"])
@pytest.mark.parametrize("credit", ["later", "caption"])
def test_the_hard_attention_estimator_is_unbiased(hard, monkeypatch, guess, baseline, credit):
    """Weighted by the paths' probabilities, its gradients sum to the exact gradient of the variational bound."""
    objective = HardAttention(pad=0, entropy=0.0, expectation=0.0, baseline=baseline, credit=credit)
    objective.prepare(hard, None)
    objective.double()
    monkeypatch.setattr(objective, "_update", lambda *_: None)
    objective.baseline.fill_(guess)
    batch = batch_of([[1, 5, 6, 2]])
    bound, estimate, total = 0.0, 0.0, 0.0
    for probability, likelihood, loss in each_path(hard, batch, objective, monkeypatch):
        bound = bound + probability * likelihood
        estimate = estimate + probability.detach() * gradient(loss, hard)
        total += float(probability.detach())
    assert total == pytest.approx(1)
    exact = -gradient(bound, hard) / batch.token_count
    torch.testing.assert_close(estimate, exact, rtol=1e-8, atol=1e-10)
    assert exact.abs().max() > 1e-3


@pytest.mark.parametrize("baseline", ["own", "average"])
def test_several_draws_of_each_caption_are_unbiased_and_their_mean(hard, monkeypatch, baseline):
    """Every pair of location sequences: weighted by their probabilities, the gradients sum to the exact one."""
    objective = HardAttention(pad=0, samples=2, entropy=0.0, expectation=0.0, baseline=baseline).double()
    single = HardAttention(pad=0, entropy=0.0, expectation=0.0, baseline=baseline).double()
    for each in (objective, single):
        each.prepare(hard, None)
        monkeypatch.setattr(each, "_update", lambda *_: None)
        each.baseline.fill_(-0.7)
    batch = batch_of([[1, 5, 2]])
    paths = list(itertools.product(range(CELLS), repeat=2))
    found = list(each_path(hard, batch, single, monkeypatch))
    bound = sum(probability * likelihood for probability, likelihood, _ in found)
    estimate = 0.0
    for first, second in itertools.product(range(len(paths)), repeat=2):
        steps = iter(zip(paths[first], paths[second]))
        monkeypatch.setattr(torch, "multinomial", lambda *_, steps=steps: torch.tensor(next(steps))[:, None])
        loss, _ = objective(hard, batch)
        torch.testing.assert_close(loss, (found[first][2] + found[second][2]) / 2)
        estimate = estimate + (found[first][0] * found[second][0]).detach() * gradient(loss, hard)
    exact = -gradient(bound, hard) / batch.token_count
    torch.testing.assert_close(estimate, exact, rtol=1e-8, atol=1e-10)
    assert exact.abs().max() > 1e-3


@torch.no_grad()
def test_more_draws_make_the_estimate_steadier(hard):
    batch = batch_of([[1, 5, 6, 2], [1, 6, 2, 0], [1, 6, 6, 2]], photos=3)
    spread = {}
    for samples in (1, 5):
        objective = HardAttention(pad=0, samples=samples, entropy=0.0, expectation=0.0).double()
        objective.prepare(hard, None)
        torch.manual_seed(0)
        with torch.enable_grad():
            losses = (objective(hard, batch)[0] for _ in range(100))
            draws = torch.stack([torch.autograd.grad(loss, hard.decoder.key.weight)[0] for loss in losses])
        spread[samples] = float(draws.var(0).sum())
    assert 0.1 * spread[1] < spread[5] < 0.4 * spread[1]


def test_without_the_score_term_the_estimator_would_be_biased(hard, monkeypatch):
    objective = HardAttention(pad=0, entropy=0.0, expectation=0.0, score_weight=0.0).double()
    objective.prepare(hard, None)
    batch = batch_of([[1, 5, 6, 2]])
    bound, estimate = 0.0, 0.0
    for probability, likelihood, loss in each_path(hard, batch, objective, monkeypatch):
        bound = bound + probability * likelihood
        estimate = estimate + probability.detach() * gradient(loss, hard)
    assert (estimate + gradient(bound, hard) / batch.token_count).abs().max() > 1e-4


def test_captions_on_expectation_are_soft_attention(hard):
    objective = HardAttention(pad=0, entropy=0.0, expectation=1.0).double()
    objective.prepare(hard, None)
    batch = batch_of([[1, 5, 6, 2]])
    loss, _ = objective(hard, batch)
    hard.eval()
    expected = hard(batch.photos, batch.tokens[:, :-1]).logits.log_softmax(-1)
    torch.testing.assert_close(loss, -expected.gather(2, batch.tokens[:, 1:, None]).mean())


def test_the_baseline_is_a_moving_average_of_a_words_log_likelihood(hard):
    objective = HardAttention(pad=0, expectation=0.0, baseline="average").double()
    objective.prepare(hard, None)
    objective._update(torch.tensor(-20.0).double(), torch.tensor(10))
    assert objective.baseline.item() == pytest.approx(-2)
    objective._update(torch.tensor(-10.0).double(), torch.tensor(10))
    assert objective.baseline.item() == pytest.approx(0.9 * -2 + 0.1 * -1)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("captions", [1, 2])
def test_a_captions_own_baseline_is_its_likelihood_without_draws(hard, captions, samples):
    objective = HardAttention(pad=0, samples=samples).double()
    objective.prepare(hard, None)
    batch = batch_of([[1, 5, 6, 2], [1, 6, 2, 0], [1, 6, 6, 2], [1, 5, 2, 0]], photos=4 // captions)
    drawn = torch.tensor([True, False, True, False]).repeat_interleave(samples)
    found = objective._without_draws(hard, batch, drawn, torch.zeros(4 * samples, 3).double())
    assert hard.training
    hard.eval()
    expected = hard(batch.photos, batch.tokens[:, :-1]).logits.log_softmax(-1)
    expected = expected.gather(2, batch.tokens[:, 1:, None]).squeeze(2) * (batch.tokens[:, 1:] != 0)
    expected = expected.repeat_interleave(samples, 0)
    torch.testing.assert_close(found[drawn], expected[drawn])
    assert not objective._without_draws(hard, batch, ~drawn & drawn, found).any(), "nothing drawn, nothing to compute"


@torch.no_grad()
def test_later_words_and_the_captions_own_baseline_make_the_estimate_steadier(hard):
    """How much the attention's gradient varies over draws of locations, on captions of common and of rare words."""
    hard.decoder.output.bias += torch.tensor([0, 0, 1, 0, 0, 2, -2])
    batch = batch_of([[1, 5, 5, 5, 2], [1, 6, 6, 6, 2]], photos=2)
    spread = {}
    for baseline, credit in (("average", "caption"), ("average", "later"), ("own", "later")):
        objective = HardAttention(pad=0, entropy=0.0, expectation=0.0, baseline=baseline, credit=credit)
        objective.prepare(hard, None)
        objective.double()
        torch.manual_seed(0)
        for _ in range(20):
            objective(hard, batch)
        with torch.enable_grad():
            losses = (objective(hard, batch)[0] for _ in range(100))
            draws = torch.stack([torch.autograd.grad(loss, hard.decoder.key.weight)[0] for loss in losses])
        spread[baseline, credit] = float(draws.var(0).sum())
    assert spread["own", "later"] < 0.5 * spread["average", "later"] < 0.5 * spread["average", "caption"]


def test_hard_attention_refuses_a_soft_decoder():
    with pytest.raises(ConfigError, match=r"decoder\.mode=hard"):
        HardAttention(pad=0).prepare(Tiny("attention-lstm", 7, mode="soft", width=5), None)


# -- self-critical ----------------------------------------------------------------------------------------------------


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


# -- distillation -----------------------------------------------------------------------------------------------------


def test_a_student_equal_to_its_teacher_has_nothing_to_learn_from_it():
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    objective = Distillation(0, teacher, DEPTH, teacher_weight=1.0)
    batch = batch_of([[1, 5, 6, 2]])
    loss, _ = objective(student, Batch(**{**batch.__dict__, "teacher": batch.photos}))
    assert loss.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distillation_is_the_divergence_from_the_teacher_to_the_student(temperature):
    """KL(teacher || student) = sum p_t (log p_t - log p_s), Hinton et al.'s: the student must cover what the teacher
    says. The other direction has another value, and lets a student ignore all but one of the teacher's words."""
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    for parameter in teacher.parameters():
        nn.init.normal_(parameter, std=0.7)
    batch = batch_of([[1, 5, 6, 2], [1, 7, 2, 0]], photos=2)
    batch = Batch(**{**batch.__dict__, "teacher": some_features(2)})
    loss, logs = Distillation(0, teacher, DEPTH, temperature=temperature, teacher_weight=1.0)(student, batch)
    inputs, real = batch.tokens[:, :-1], batch.tokens[:, 1:] != 0
    p_student, p_teacher = (
        (model(batch.photos, inputs).logits[real] / temperature).softmax(-1).detach() for model in (student, teacher)
    )
    forward, reverse = (
        (p * (p / q).log()).sum().item() / int(real.sum()) * temperature**2
        for p, q in ((p_teacher, p_student), (p_student, p_teacher))
    )
    assert loss.item() == logs["divergence"].item() == pytest.approx(forward, rel=1e-9)
    assert abs(forward - reverse) > 0.05 * forward, "the directions must differ for this to be a test"


def test_a_student_comes_to_agree_with_its_teacher_in_words_and_features():
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    for parameter in teacher.parameters():
        nn.init.normal_(parameter, std=0.5)
    student.projection = nn.Linear(DEPTH, DEPTH).double()
    student.features = lambda photos: ImageFeatures(
        student.projection(photos.grid), student.projection(photos.pooled), photos.height, photos.width
    ) if photos is batch.photos else photos  # fmt: skip
    batch = batch_of([[1, 5, 6, 2], [1, 7, 2, 0]], photos=2)
    batch = Batch(**{**batch.__dict__, "teacher": some_features(2)})
    objective = Distillation(0, teacher, DEPTH, teacher_weight=1.0, feature_weight=1.0).double()
    optimizer = torch.optim.Adam([*student.parameters(), *objective.parameters()], 0.02)
    losses = []
    for _ in range(60):
        loss, logs = objective(student, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((float(logs["divergence"]), float(logs["features"])))
    assert losses[-1][0] < losses[0][0] / 5
    assert losses[-1][1] < losses[0][1] / 5


def test_the_feature_loss_compares_what_both_decoders_read_of_each_cell():
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    nn.init.normal_(teacher.decoder.photo.weight)
    objective = Distillation(0, teacher, DEPTH, feature_weight=1.0, init_from_teacher=True)
    features = some_features(2)
    cells = [*features.grid.flatten(0, 1), *features.pooled]
    pairs = [(student.decoder.photo(cell), teacher.decoder.photo(cell)) for cell in cells]
    cosines = [(one @ other / one.norm() / other.norm()).item() for one, other in pairs]
    distance = objective._distance(student, features, features).item()
    assert distance == pytest.approx(1 - sum(cosines) / len(cosines))


def test_the_map_to_the_teachers_features_is_fitted_to_so_many_photos_and_no_more(monkeypatch):
    monkeypatch.setattr(distillation, "FITTED_PHOTOS", 4)
    student, teacher = (Tiny("transformer", 8, width=8, heads=2, blocks=1) for _ in range(2))
    batch = batch_of([[1, 5, 2]])
    batches = iter([Batch(**{**batch.__dict__, "teacher": batch.photos})] * 6)
    distillation.init_decoder(student, teacher, batches)
    assert len(list(batches)) == 2
