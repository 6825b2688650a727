"""Hard attention: its gradient estimator against exactly enumerated gradients, and what makes it steadier."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_objectives import CELLS, Tiny, batch_of, gradient

from sightline.errors import ConfigError
from sightline.training.objectives.base import doubly_stochastic
from sightline.training.objectives.hard_attention import HardAttention


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
