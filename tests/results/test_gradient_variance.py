"""The gradient's noise: nothing left to chance but the places, and measured by the objective that trains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gradient_variance as tool
import sections
from script import run
from sightline.data import load_dataset
from sightline.nn.caption_model import CaptionModel
from sightline.nn.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sightline.recipes.config import load_recipe
from sightline.training.setup import build_model, build_tokenizer

TINY = (
    "encoder.name=patches", "encoder.image_size=16", "encoder.patch_size=4", "encoder.width=16", "encoder.heads=2",
    "encoder.blocks=1", "decoder.width=16", "decoder.hidden=16", "decoder.attention=16", "tokenizer.max_length=12",
)  # fmt: skip


@pytest.fixture(scope="module")
def hard_run(tiny_flickr8k_kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "hard"
    recipe = load_recipe("sat-hard-vgg19", TINY)
    torch.manual_seed(3)
    tokenizer = build_tokenizer(recipe, load_dataset(tiny_flickr8k_kept))
    save_checkpoint(folder, Checkpoint(build_model(recipe, tokenizer), tokenizer, {}, {}, recipe.to_toml()))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.training.feature_cache.cache_folder", lambda: tmp_path / "cache")


def test_mean_and_variance_are_those_of_the_gradients() -> None:
    drawn = np.random.default_rng(0).normal(size=(50, 7))
    spread = tool.Spread({"place.weight": torch.zeros(7, dtype=torch.float64), "other": torch.zeros(2)})
    for row in drawn:
        spread.add({"place.weight": torch.from_numpy(row)})
    variance, length = spread.read(tool.ATTENTION)
    assert variance == pytest.approx(drawn.var(axis=0, ddof=1).sum())
    assert length == pytest.approx(max(0.0, (drawn.mean(0) ** 2).sum() - variance / 50))
    assert spread.read(["other"]) == (0.0, 0.0)
    assert spread.read() == (pytest.approx(variance), pytest.approx(length))


def parts(folder: Path, data: Path):
    checkpoint = load_checkpoint(folder)
    examples = load_dataset(data).examples("train")
    tokens = [[checkpoint.tokenizer.encode(text) for text in example.captions] for example in examples]
    loader = tool.CaptionLoader(tokens, tool.Photos(checkpoint, examples), 8, choice="all", by_length=True)
    model = CaptionModel(checkpoint.model.encoder, tool.without_dropout(checkpoint.model.decoder))
    return model, tool.recipe_of(folder).objective, next(loader.epoch(0))


def test_without_draws_the_gradient_never_differs(hard_run: Path, tiny_flickr8k_kept: Path) -> None:
    """With every caption on the expectation nothing is left to chance: dropout is off."""
    model, settings, batch = parts(hard_run, tiny_flickr8k_kept)
    for expectation, noisy in ((1.0, False), (0.0, True)):
        objective = tool.objective_for(model, settings, 0, {"expectation": expectation})
        variance, length = tool.spread_of(model, objective, batch, repeats=4, seed=0).read()
        assert (variance > 1e-4 * length) == noisy


def test_the_baseline_is_what_the_objective_arrives_at(hard_run: Path, tiny_flickr8k_kept: Path) -> None:
    model, settings, batch = parts(hard_run, tiny_flickr8k_kept)
    objective = tool.objective_for(model, settings, 0, tool.PAPER, [batch, batch])
    uniform = -np.log(model.decoder.vocabulary)
    assert float(objective.baseline) == pytest.approx(uniform, abs=1.0), "fresh weights guess evenly"
    objective = tool.objective_for(model, settings, 0, tool.SETTINGS["no baseline"], [batch, batch])
    assert float(objective.baseline) == 0
    tool.spread_of(model, objective, batch, repeats=2, seed=0)
    assert float(objective.baseline) == 0, "measuring teaches the baseline nothing"


def test_a_variance_for_every_setting_and_both_weights(
    hard_run: Path, tiny_flickr8k_kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(hard_run), "--data", str(tiny_flickr8k_kept), "--results", str(tmp_path / "results")]
    assert run(tool.main, [*arguments, "--batches", "1", "--captions", "8", "--repeats", "12"]) == 0
    found = json.loads((tmp_path / "results" / "gradient_variance.json").read_text())
    for weights in ("trained", "fresh"):
        noise = {name: found["weights"][weights][name]["attention"]["variance"] for name in tool.SETTINGS}
        assert noise["no baseline"] > 2 * noise["all three tricks"]
        assert noise["none of them"] > noise["no expectation"]
        assert noise["all three, judged by later words"] < noise["all three tricks"]
        for name in tool.SETTINGS:
            parts = found["weights"][weights][name]
            assert 0 < parts["attention"]["variance"] < parts["all"]["variance"]
    text = sections.blocks(tmp_path / "results")["results/experiments.md"]["gradient variance"]
    assert text.count("| trained |") == text.count("| fresh |") == len(tool.SETTINGS)
    assert "| trained | all three tricks |" in text and "| 1.00 |" in text


def test_the_same_draws_come_again(hard_run: Path, tiny_flickr8k_kept: Path) -> None:
    data = load_dataset(tiny_flickr8k_kept)
    first, second = (tool.experiment(hard_run, data, "train", 1, 8, 2) for _ in range(2))
    assert first == second


def test_a_run_of_another_objective_is_refused(
    finished_run: Path, tiny_flickr8k_kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tool.main, [str(finished_run), "--data", str(tiny_flickr8k_kept)]) == 2
    assert "give a run of objective 'hard-attention'" in capsys.readouterr().err
