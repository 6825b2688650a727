"""Starting from a trained model: its words stay, new ones join them, and one's own photos are split one way only."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from drawings import EVERY

from sightline.cli.train import _show
from sightline.data import load_dataset
from sightline.engine.captioner import load
from sightline.errors import ConfigError
from sightline.evaluation.scoring import evaluate
from sightline.nn.checkpoint import load_checkpoint
from sightline.recipes.config import load_recipe, parse_recipe
from sightline.tokenizers import train_tokenizer
from sightline.training.setup import PER_WORD, build_model, build_parts, build_tokenizer, resized
from sightline.training.state import epoch_line, gain
from sightline.training.trainer import train

TINY = {
    "encoder": {"name": "patches", "image_size": 32, "patch_size": 8, "width": 32, "blocks": 1, "heads": 2},
    "decoder": {"name": "transformer", "width": 32, "heads": 2, "blocks": 1},
    "training": {"epochs": 1, "batch_size": 4, "new_words": 2},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def my_captions(tmp_path: Path) -> Path:
    """A table without splits; every caption has a word that no model knows."""
    folder = tmp_path / "photos"
    folder.mkdir()
    with (folder / "my-captions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for drawing in EVERY:
            drawing.draw().save(folder / drawing.name)
            table.writerow([drawing.name, f"a {drawing.colour} wombat"])
    return folder / "my-captions.csv"


def test_new_words_come_after_the_old_ones() -> None:
    before = train_tokenizer("word", ["a dog runs", "a dog"], min_count=1, max_length=9)
    after = before.extended(["a wombat runs", "the wombat", "a slip"], 2)
    assert after.tokens == (*before.tokens, "wombat")
    assert after.max_length == before.max_length
    assert before.extended(["a dog"], 1).tokens == before.tokens


@pytest.mark.parametrize("name", ["char", "bpe"])
def test_pieces_spell_new_words_as_they_are(name: str) -> None:
    before = train_tokenizer(name, ["a dog runs"], max_length=9)
    assert before.extended(["a wombat"] * 5, 1) is before


def test_a_run_that_starts_from_a_model_keeps_its_ids_and_learns_new_words(my_captions: Path, tiny_model: Path):
    recipe = parse_recipe(TINY, [f"training.init={tiny_model}"])
    dataset = load_dataset(my_captions)
    before = load_checkpoint(tiny_model)
    tokenizer = build_tokenizer(recipe, dataset)
    assert tokenizer.tokens == (*before.tokenizer.tokens, "wombat")
    model, old = build_model(recipe, tokenizer), before.model.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor[: len(old[name])] if name in PER_WORD else tensor, old[name]), name
    unknown = before.model.decoder.embedding.vectors.weight[tokenizer.unknown]
    assert torch.equal(model.decoder.embedding.vectors.weight[-1], unknown)
    train(recipe, my_captions, tmp := my_captions.parent / "run")
    assert "wombat" in load(tmp).tokenizer.ids


def test_without_new_words_the_vocabulary_stays(my_captions: Path, tiny_model: Path) -> None:
    recipe = parse_recipe(TINY, [f"training.init={tiny_model}", "training.new_words=none"])
    assert build_tokenizer(recipe, load_dataset(my_captions)).tokens == load_checkpoint(tiny_model).tokenizer.tokens


def test_new_words_together_are_as_likely_as_the_unknown_was() -> None:
    bias = torch.tensor([0.0, 0.0, 0.0, 2.0])
    wider = resized({"decoder.output.bias": bias}, 7)["decoder.output.bias"]
    assert torch.equal(wider[:4], bias)
    assert wider[4:].exp().sum() == pytest.approx(0.75 * bias[3].exp())  # three of four shares


def test_the_recipe_starts_from_the_model_in_the_box_and_downloads_nothing(my_captions: Path) -> None:
    recipe = load_recipe("own-photos", ["training.new_words=2"])
    assert recipe.encoder.weights == "library"
    parts = build_tokenizer(recipe, load_dataset(my_captions))
    assert parts.tokens[-1] == "wombat"
    model = build_model(recipe, parts)
    shipped = load_checkpoint(Path(load.__code__.co_filename).parents[1] / "pretrained" / "default")
    assert model.encoder.preprocess == shipped.model.encoder.preprocess
    assert not any(parameter.requires_grad for parameter in model.encoder.parameters())
    for name, tensor in shipped.model.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)


def test_another_kind_of_model_is_told_with_the_recipe_that_fits(my_captions: Path, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"its own recipe is: `sightline train .*recipe\.toml"):
        build_parts(parse_recipe(TINY, [f"training.init={tiny_model}", "decoder.width=64"]), load_dataset(my_captions))


def test_training_and_evaluation_split_ones_own_photos_alike(my_captions: Path, tiny_model: Path, monkeypatch) -> None:
    """Whatever the seed of the run: or the test photos would be among those trained on."""
    seen = []
    monkeypatch.setattr("sightline.training.trainer.Trainer.__init__", lambda self, recipe, data, *_: seen.append(data))
    monkeypatch.setattr("sightline.training.trainer.Trainer.run", lambda self: {})
    for seed in (1, 2):
        train(parse_recipe(TINY, [f"training.seed={seed}", f"training.init={tiny_model}"]), my_captions, "run")
    names = [[example.name for example in data.examples("test")] for data in (*seen, load_dataset(my_captions))]
    assert names[0] == names[1] == names[2]


def test_a_run_says_whether_it_passed_the_model_it_started_from(my_captions: Path, tiny_model: Path, caplog) -> None:
    start = evaluate(load(tiny_model, runtime="torch"), my_captions, "val", metrics=["bleu"]).scores
    caplog.set_level("INFO", "sightline")
    recipe = parse_recipe(TINY, [f"training.init={tiny_model}", "training.epochs=9", "training.metric=bleu_1"])
    best = train(recipe, my_captions, run := my_captions.parent / "run")
    assert f"{tiny_model} as it is: val CIDEr-D 0.0, BLEU-4 {100 * start['bleu_4']:.1f}" in caplog.text
    message = f"val BLEU-1 {100 * best['bleu_1']:.1f}, the model it started from {100 * start['bleu_1']:.1f}"
    assert best["bleu_1"] > start["bleu_1"]
    assert best["passed_start"]
    assert caplog.messages[-1] == message
    caplog.clear()
    train(
        recipe, my_captions, run, resume=True
    )  # the score of the start is kept: the weights at hand are no longer those of the start
    assert "as it is" not in caplog.text
    assert caplog.messages[-1] == message


def test_an_epochs_scores_are_told_as_in_the_tables():
    losses = {"train_nll": 2.5, "val_nll": 2.75, "val_nll_per_character": 0.5}
    line = epoch_line({"epoch": 2, **losses, "cider": 1.3789, "bleu_4": 0.278, "minutes": 1.25, "best": True})
    assert line == "epoch 3: train loss 2.500, val loss 2.750, CIDEr-D 137.9, BLEU-4 27.8, minutes 1.2  (best so far)"


@pytest.mark.parametrize(("metric", "name"), [("cider", "CIDEr-D"), ("bleu_4", "BLEU-4"), ("loss", "CIDEr-D")])
def test_a_run_that_gained_nothing_says_so(metric: str, name: str) -> None:
    start = {"cider": 0.303, "bleu_4": 0.303}
    message = gain(start, {"cider": 0.281, "bleu_4": 0.281, "epoch": 0}, metric)
    assert message == f"no epoch was better than the model it started from: val {name} 28.1 at best, 30.3 before"
    message = gain(start, {"cider": 0.497, "bleu_4": 0.497, "epoch": 0}, metric)
    assert message == f"val {name} 49.7, the model it started from 30.3"


@pytest.mark.parametrize(("passed", "advice"), [(True, "sightline evaluate mine"), (False, "stay with default")])
def test_what_to_do_next_depends_on_whether_it_gained(passed: bool, advice: str, capsys) -> None:
    _show({"epoch": 0, "val_nll": 2.5, "cider": 0.3, "passed_start": passed}, Path("mine"), "my.csv", "default")
    assert f"next: {advice}" in capsys.readouterr().out


def test_scoring_the_start_changes_nothing_of_the_training(my_captions: Path, tiny_model: Path, monkeypatch) -> None:
    recipe = parse_recipe(TINY, [f"training.init={tiny_model}", "decoder.dropout=0.3"])
    train(recipe, my_captions, my_captions.parent / "scored")
    monkeypatch.setattr("sightline.training.trainer.Trainer._score_start", lambda self: None)
    train(recipe, my_captions, my_captions.parent / "not")
    scored, not_scored = ((my_captions.parent / name / "model.safetensors").read_bytes() for name in ("scored", "not"))
    assert scored == not_scored
