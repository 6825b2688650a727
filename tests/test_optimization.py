"""Learning rates and averaged weights: by formula, as a run really uses them, and over a saved state."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_training import TINY
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from sightline.data import load_dataset
from sightline.recipes.config import parse_recipe
from sightline.training.optimization import AveragedWeights, Schedule, build_optimizer
from sightline.training.trainer import Trainer


def an_optimizer(*rates: float) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups)


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def factors(kind: str, warmup: int, total: int) -> Iterator[float]:
    """The factor on the learning rates at each update, as the papers write it."""
    for step in range(total):
        if step < warmup:
            yield (step + 1) / warmup
        elif kind == "cosine":
            yield 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        else:
            yield 1.0


@pytest.mark.parametrize("kind", ["cosine", "constant", "plateau"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 7), (1, 7), (3, 20), (20, 20), (50, 400)])
def test_learning_rates_follow_their_formula(kind: str, warmup: int, total: int) -> None:
    optimizer = an_optimizer(0.4, 0.01)
    schedule = Schedule(optimizer, kind, warmup, total)
    for expected in factors(kind, warmup, total):
        assert rates_of(optimizer) == pytest.approx([0.4 * expected, 0.01 * expected], rel=1e-9, abs=1e-15)
        optimizer.step()
        schedule.step()


def test_rates_are_halved_after_two_evaluations_without_a_better_one() -> None:
    optimizer = an_optimizer(1.0)
    schedule = Schedule(optimizer, "plateau", 0, 100)
    halved = []
    for score in (0.5, 0.5, 0.6, 0.6, 0.55, 0.7, 0.1, 0.7, 0.1, 0.1):
        optimizer.step()
        schedule.step()
        schedule.evaluated(score)
        halved.append(rates_of(optimizer)[0])
    assert halved == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]


@pytest.mark.parametrize("kind", ["cosine", "constant"])
def test_scores_change_no_other_schedule(kind: str) -> None:
    optimizer = an_optimizer(1.0)
    schedule = Schedule(optimizer, kind, 0, 100)
    for _ in range(5):
        schedule.evaluated(0.0)
    assert rates_of(optimizer) == [1.0]


@pytest.mark.parametrize("kind", ["cosine", "constant", "plateau"])
@pytest.mark.parametrize("stop", [2, 5, 11])
def test_a_restored_schedule_goes_on_to_the_bit(kind: str, stop: int) -> None:
    """Stopped while warming up, right after, and later; the state passes through a JSON file."""
    found = []
    for stopped in (False, True):
        optimizer = an_optimizer(0.3, 0.007)
        schedule = Schedule(optimizer, kind, 5, 20)
        for step in range(20):
            if stopped and step == stop:
                state = json.loads(json.dumps(schedule.state()))
                optimizer = an_optimizer(0.3, 0.007)
                schedule = Schedule(optimizer, kind, 5, 20)
                schedule.restore(state)
            found.append((stopped, step, rates_of(optimizer)))
            optimizer.step()
            schedule.step()
            schedule.evaluated(-step)
    assert [row[1:] for row in found if row[0]] == [row[1:] for row in found if not row[0]]


def test_a_state_of_another_schedule_is_refused() -> None:
    states = {kind: Schedule(an_optimizer(0.1), kind, 2, 9).state() for kind in ("cosine", "constant", "plateau")}
    for kind in states:
        for other, state in states.items():
            if kind != other:
                with pytest.raises(ValueError, match="does not fit this recipe"):
                    Schedule(an_optimizer(0.1), kind, 2, 9).restore(state)
    damaged = states["constant"] | {"rates": ["0.1"]}
    with pytest.raises(ValueError, match=r"schedule\.rates\.0 does not fit this recipe"):
        Schedule(an_optimizer(0.1), "constant", 2, 9).restore(damaged)


def test_averaged_weights_decay_as_asked_and_faster_at_first() -> None:
    """Decay d: the average keeps d of itself at each update, but at most (1 + n) / (10 + n) at the n-th."""
    model = nn.Linear(1, 1, bias=False)
    for decay, updates in ((0.9, 200), (0.5, 20), (0.1, 5)):
        nn.init.constant_(model.weight, 1.0)
        average, expected = AveragedWeights(model, decay), 1.0
        for n in range(1, updates + 1):
            nn.init.constant_(model.weight, float(n % 7))
            average.update()
            kept = min(decay, (1 + n) / (10 + n))
            expected = kept * expected + (1 - kept) * (n % 7)
            assert average.average["weight"].item() == pytest.approx(expected, rel=1e-5)
        assert average.updates == updates


def test_only_trained_weights_are_averaged_and_swapping_twice_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    average = AveragedWeights(model, 0.9)
    assert set(average.average) == {"1.weight", "1.bias"}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nn.init.zeros_(model[1].weight)
    average.swap()
    assert torch.equal(model[1].weight, before["1.weight"])
    average.swap()
    assert not model[1].weight.any()
    assert torch.equal(model[0].weight, before["0.weight"])


@pytest.fixture
def updates() -> Iterator[list[tuple[list[float], dict[int, torch.Tensor]]]]:
    """Of every update of any optimizer in this process: its learning rates, and the weights after it by their id."""
    seen: list[tuple[list[float], dict[int, torch.Tensor]]] = []

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        seen.append((rates_of(optimizer), {id(weight): weight.detach().clone() for weight in weights}))

    hook = register_optimizer_step_post_hook(after)
    yield seen
    hook.remove()


def test_a_run_warms_up_follows_the_cosine_and_saves_the_averaged_weights(
    tiny_flickr8k: Path, tmp_path: Path, updates: list[tuple[list[float], dict[int, torch.Tensor]]]
) -> None:
    changes = {"epochs": 5, "batch_size": 1, "warmup": 0.2, "average": 0.8, "evaluate_every": 5, "learning_rate": 0.01}
    recipe = parse_recipe(TINY, [f"training.{name}={value}" for name, value in changes.items()])
    trainer = Trainer(recipe, load_dataset(tiny_flickr8k), tmp_path / "run")
    first = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.run()
    assert len(updates) >= 10
    for (rates, _), factor in zip(updates, factors("cosine", round(0.2 * len(updates)), len(updates))):
        assert rates == pytest.approx([0.01 * factor] * len(rates), rel=1e-9, abs=1e-15)

    saved = load_file(tmp_path / "run" / "model.safetensors")  # in half precision
    different = 0
    for name, weight in trainer.model.named_parameters():
        expected = first[name]
        for n, (_, weights) in enumerate(updates, 1):
            expected = expected.lerp(weights[id(weight)], 1 - min(0.8, (1 + n) / (10 + n)))
        assert trainer.average is not None
        torch.testing.assert_close(trainer.average.average[name], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(saved[name].float(), expected, rtol=1e-3, atol=1e-5)
        different += not torch.allclose(weight, expected, rtol=1e-3, atol=1e-5)
    assert different > 0.8 * len(first), "an average that equals the last weights would prove nothing"


def test_rmsprop_is_centred_and_has_momentum() -> None:
    """v = 0.95 v + 0.05 g^2, m = 0.95 m + 0.05 g, step = 0.9 step + g / (sqrt(v - m^2) + eps)."""
    model = torch.nn.Linear(2, 1, bias=False)
    weight = model.weight.detach().clone()
    optimizer = build_optimizer(model, "rmsprop", 1e-2, weight_decay=0.1, encoder_rate=1e-2)
    square, mean, step = torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)
    for gradient in (torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 0.1]]), torch.tensor([[-1.0, 3.0]])):
        model.weight.grad = gradient.clone()
        optimizer.step()
        square = 0.95 * square + 0.05 * gradient**2
        mean = 0.95 * mean + 0.05 * gradient
        step = 0.9 * step + gradient / ((square - mean**2).sqrt() + 1e-3)
        weight = weight - 1e-2 * step
        torch.testing.assert_close(model.weight.detach(), weight)


def test_matrices_are_decayed_and_vectors_are_not() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 3), "decoder": nn.Linear(3, 2)})
    for name, decay in (("adamw", 0.5), ("adam", 0.0)):
        groups = build_optimizer(model, name, 0.1, 0.5, encoder_rate=0.02).param_groups
        found = {(group["lr"], group["params"][0].dim(), group["weight_decay"]) for group in groups}
        assert found == {(0.02, 2, decay), (0.02, 1, 0.0), (0.1, 2, decay), (0.1, 1, 0.0)}
