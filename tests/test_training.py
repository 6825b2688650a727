"""The training loop: a killed run resumes to the bit, two processes equal one, a fault leaves the last checkpoint."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sightline.data import load_dataset
from sightline.engine.captioner import load
from sightline.errors import ConfigError, DataError, ImageError, SightlineError
from sightline.recipes.config import load_recipe, parse_recipe
from sightline.tokenizers.base import normalise
from sightline.training.setup import build_parts, photos_of
from sightline.training.state import read_history
from sightline.training.trainer import Trainer, train

TINY = {
    "encoder": {"name": "patches", "image_size": 32, "width": 32, "blocks": 1, "heads": 2, "dropout": 0.0},
    "decoder": {"name": "transformer", "width": 32, "heads": 2, "blocks": 1, "dropout": 0.1},
    "tokenizer": {"min_count": 1},
    "training": {"epochs": 4, "batch_size": 3, "average": 0.9, "patience": 0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


# -- resume -----------------------------------------------------------------------------------------------------------


def run_cli(*arguments: str, **options):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def train_command(recipe: Path, data: Path, output: Path, *more: str) -> list[str]:
    return ["-m", "sightline", "train", str(recipe), "--data", str(data), "-o", str(output), *more]


def test_runs_of_different_precision_follow_each_other_in_one_process(tiny_flickr8k, tmp_path) -> None:
    for precision in ("bf16", "no"):
        trainer = Trainer(
            parse_recipe(TINY, [f"training.precision={precision}"]), load_dataset(tiny_flickr8k), tmp_path / precision
        )
        assert trainer.accelerator.mixed_precision == precision


@pytest.fixture
def recipe_file(tmp_path):
    """A recipe with everything that has a state: dropout, averaged weights, hard attention's draws and baseline."""
    changes = ["decoder.name=attention-lstm", "decoder.mode=hard", "decoder.width=16", "decoder.hidden=16",
               "decoder.attention=16", "objective.name=hard-attention", "training.epochs=6", "training.batch_size=2",
               "training.checkpoint_minutes=0.00001", "training.schedule=plateau", "data.augment=true"]  # fmt: skip
    path = tmp_path / "tiny.toml"
    path.write_text(parse_recipe(TINY, changes).to_toml())
    return path


def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(recipe_file, tiny_flickr8k, tmp_path):
    whole = run_cli(*train_command(recipe_file, tiny_flickr8k, tmp_path / "whole"))
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output

    broken, kills = tmp_path / "broken", 0
    rng = random.Random(7)
    for _ in range(30):
        process = run_cli(*train_command(recipe_file, tiny_flickr8k, broken, "--resume"))
        begun = _wait_for_change(broken / "state.safetensors", process)
        if kills < 3 and begun:
            time.sleep(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
            continue
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        break
    assert kills >= 2
    assert (broken / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    found, expected = load_file(broken / "state.safetensors"), load_file(tmp_path / "whole" / "state.safetensors")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    without_time = [{k: v for k, v in record.items() if k != "minutes"} for record in read_history(broken)]
    assert without_time == [{k: v for k, v in r.items() if k != "minutes"} for r in read_history(tmp_path / "whole")]


def test_an_interrupted_run_saves_after_its_batch_and_resumes_to_the_same_bits(tiny_flickr8k, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(parse_recipe(TINY, ["training.batch_size=1", "training.epochs=5"]).to_toml())
    train(load_recipe(str(recipe)), tiny_flickr8k, tmp_path / "whole")

    trainer = Trainer(load_recipe(str(recipe)), load_dataset(tiny_flickr8k), tmp_path / "broken")
    update = trainer._update

    def interrupt_in_the_middle(batch):
        if (trainer.progress["epoch"], trainer.progress["batch"]) == (2, 3):
            os.kill(os.getpid(), signal.SIGINT)
        update(batch)

    trainer._update = interrupt_in_the_middle
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.progress["batch"] == 4
    train(load_recipe(str(recipe)), tiny_flickr8k, tmp_path / "broken", resume=True)
    assert (tmp_path / "broken" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def _wait_for_change(path: Path, process: subprocess.Popen) -> bool:
    """Until the run has written a new state; False if it ended first."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime_ns != before:
            return True
        time.sleep(0.01)
    return False


def test_a_recipe_is_given_by_its_name_or_path(tiny_flickr8k, tmp_path):
    (tmp_path / "tiny.toml").write_text(parse_recipe(TINY, ["training.epochs=1"]).to_toml())
    assert train(tmp_path / "tiny.toml", tiny_flickr8k, tmp_path / "run")["epoch"] == 0
    with pytest.raises(ConfigError, match="did you mean 'own-photos'"):
        train("own-photo", tiny_flickr8k, tmp_path / "other")


def test_a_finished_run_resumed_stays_as_it_is(tiny_flickr8k, tmp_path):
    train(parse_recipe(TINY), tiny_flickr8k, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    best = train(parse_recipe(TINY), tiny_flickr8k, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert best["cider"] >= 0


def test_resuming_where_nothing_is_to_be_resumed_warns_and_begins(tiny_flickr8k, tmp_path, caplog):
    train(parse_recipe(TINY, ["training.epochs=1"]), tiny_flickr8k, tmp_path / "run", resume=True)
    _, warning = [record.message for record in caplog.records if record.levelname == "WARNING"]  # after: few val photos
    assert warning == f"--resume found nothing to resume in {tmp_path / 'run'}: this is a new run, from the beginning"
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_run_sees_the_first_photos_of_each_source(tiny_flickr8k):
    dataset = load_dataset(tiny_flickr8k)
    (photo, *_) = dataset.examples("train")
    photos = [
        replace(photo, name=f"{number}", source=source, captions=("a dog",) * captions)
        for source, captions in (("kennel", 5), ("zoo", 1), ("zoo", 5))
        for number in range(4)
    ]
    dataset = replace(dataset, splits=dict.fromkeys(("train", "val", "test"), photos))

    def seen(split: str, *changes: str) -> list[tuple[str, str]]:
        recipe = parse_recipe(TINY, ["training.train_photos=3", "training.val_photos=2", *changes])
        return [(example.source, example.name) for example in photos_of(recipe, dataset, split)]

    assert seen("train") == [(source, name) for source in ("kennel", "zoo") for name in "012"]
    assert seen("val") == [(source, name) for source in ("kennel", "zoo") for name in "01"]
    assert len(seen("train", "training.train_photos=0")) == len(seen("test")) == len(photos)
    enough = seen("train", "data.min_captions=5", "training.train_photos=0")
    assert len(enough) == 8, "those of the zoo with one caption are left out"
    parts = build_parts(parse_recipe(TINY, ["training.train_photos=3", "training.val_photos=2"]), dataset)
    assert len(parts.references) == 6


@pytest.mark.parametrize(("photos", "warned"), [(1, True), (49, True), (50, False)])
def test_few_val_photos_are_warned_of(photos: int, warned: bool, tiny_flickr8k, caplog):
    dataset = load_dataset(tiny_flickr8k)
    (first, *_) = dataset.examples("val")
    build_parts(parse_recipe(TINY), replace(dataset, splits=dataset.splits | {"val": [first] * photos}))
    size = "1 val photo" if photos == 1 else f"{photos} val photos"
    assert (f"scores on only {size} are uncertain" in caplog.text) == warned


def test_drawing_from_random_weights_is_warned_of(tiny_flickr8k, tmp_path, caplog):
    recipe = parse_recipe(TINY | {"objective": {"name": "self-critical"}}, ["training.epochs=1"])
    Trainer(recipe, load_dataset(tiny_flickr8k), tmp_path / "run")
    assert "begins with random weights: --set training.init=FOLDER" in caplog.text


@pytest.mark.parametrize(("layers", "warned"), [("frozen", True), ("layer4", False)])
def test_random_weights_that_stay_frozen_are_warned_of(layers: str, warned: bool, tiny_flickr8k, caplog):
    encoder = {"name": "resnet50", "weights": "random", "image_size": 32, "train": layers}
    build_parts(parse_recipe(TINY | {"encoder": encoder}), load_dataset(tiny_flickr8k))
    line = "encoder 'resnet50' is frozen with random weights: --set encoder.train=all trains it"
    assert (line in caplog.messages) == warned


def test_self_critical_training_counts_objects_that_labelled_photos_lack(tiny_flickr8k, tmp_path, caplog):
    """A model that says "dog" of every photo: half of them have labels, and no dog."""
    dataset = load_dataset(tiny_flickr8k)
    labelled = [
        replace(example, captions=("a dog",), objects=frozenset({"cat"}) if number % 2 else None)
        for number, example in enumerate(dataset.examples("train"))
    ]
    dataset = replace(dataset, splits={**dataset.splits, "train": labelled, "val": labelled})
    train(parse_recipe(TINY, ["training.epochs=40", "training.learning_rate=0.01"]), dataset, tmp_path / "start")
    objective = {"name": "self-critical", "truth_penalty": 1e-6}
    changes = ["training.epochs=1", "training.batch_size=2", f"training.init={tmp_path / 'start'}"]
    caplog.set_level("INFO")
    train(parse_recipe(TINY | {"objective": objective}, changes), dataset, tmp_path / "run")
    (record,) = read_history(tmp_path / "run")
    assert record["train_false_objects"] == pytest.approx(len(labelled) // 2 / len(labelled), abs=0.2)
    assert "false objects 0." in caplog.text


def test_a_run_is_not_overwritten_without_resume(tiny_flickr8k, tmp_path):
    train(parse_recipe(TINY, ["training.epochs=1"]), tiny_flickr8k, tmp_path / "run")
    with pytest.raises(ConfigError, match="--resume"):
        train(parse_recipe(TINY), tiny_flickr8k, tmp_path / "run")


def test_resuming_with_another_recipe_names_what_differs(tiny_flickr8k, tmp_path):
    train(parse_recipe(TINY, ["training.epochs=1"]), tiny_flickr8k, tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(ConfigError, match=r"training\.learning_rate"):
        train(
            parse_recipe(TINY, ["training.epochs=1", "training.learning_rate=0.1"]),
            tiny_flickr8k,
            tmp_path / "run",
            resume=True,
        )
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_run_whose_title_was_edited_is_resumed(tiny_flickr8k, tmp_path):
    train(parse_recipe(TINY, ["training.epochs=1"]), tiny_flickr8k, tmp_path / "run")
    train(parse_recipe(TINY | {"title": "tiny"}, ["training.epochs=1"]), tiny_flickr8k, tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["title"] == "tiny"


@pytest.mark.parametrize("other", ["zyzzyx", "two words"])
def test_a_run_is_not_resumed_with_captions_of_other_words(other, tiny_flickr8k, tmp_path):
    recipe, table = parse_recipe(TINY, ["training.epochs=1"]), tiny_flickr8k / "Flickr8k_text" / "Flickr8k.token.txt"
    train(recipe, tiny_flickr8k, tmp_path / "run")
    before = (tmp_path / "run" / "tokenizer.json").read_bytes()
    table.write_text(table.read_text().replace("circle ", f"{other} "))
    with pytest.raises(ConfigError, match=r"the captions have changed since .* or choose another --output"):
        train(recipe, tiny_flickr8k, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == before


def test_a_state_without_its_tokens_is_resumed(tiny_flickr8k, tmp_path):
    recipe = parse_recipe(TINY, ["training.epochs=1"])
    trainer = Trainer(recipe, load_dataset(tiny_flickr8k), tmp_path / "run")
    del trainer.progress["tokens"]  # as before they were kept
    trainer.run()
    train(recipe, tiny_flickr8k, tmp_path / "run", resume=True)


# -- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_give_the_result_of_one(tiny_flickr8k, tmp_path, accumulate):
    recipe = tmp_path / "tiny.toml"
    changes = ["decoder.dropout=0", "training.batch_size=3", "training.epochs=2", f"training.accumulate={accumulate}",
               "data.captions=all", "training.evaluate_every=2"]  # fmt: skip
    recipe.write_text(parse_recipe(TINY, changes).to_toml())
    one = run_cli(*train_command(recipe, tiny_flickr8k, tmp_path / "one"))
    launch = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={random.randint(20000, 60000)}"]
    two = run_cli(*launch, *train_command(recipe, tiny_flickr8k, tmp_path / "two"))
    for process in (one, two):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    found, expected = (
        load_file(tmp_path / "two" / "state.safetensors"),
        load_file(tmp_path / "one" / "state.safetensors"),
    )
    for name in expected:
        if name.startswith(("weights", "average")):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=2e-5, msg=name)
    first, second = read_history(tmp_path / "one")[-1], read_history(tmp_path / "two")[-1]
    assert second["val_nll"] == pytest.approx(first["val_nll"], rel=1e-4)


# -- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tiny_flickr8k, tmp_path):
    trainer = Trainer(parse_recipe(TINY), load_dataset(tiny_flickr8k), tmp_path / "run")
    healthy = trainer._evaluate

    def then_break():
        record = healthy()
        with torch.no_grad():
            trainer.model.decoder.output.weight.fill_(float("nan"))
        return record

    trainer._evaluate = then_break
    with pytest.raises(SightlineError, match=r"epoch 2, batch 1.*last good checkpoint"):
        trainer.run()
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    load(tmp_path / "run")


def test_a_full_disk_leaves_the_checkpoint_before_it(tiny_flickr8k, tmp_path):
    """A file-size limit stands in for the disk: the write fails in the middle of a real file."""
    train(parse_recipe(TINY, ["training.epochs=1"]), tiny_flickr8k, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(parse_recipe(TINY, ["training.epochs=1"]).to_toml())
    (tmp_path / "run" / "state.safetensors").unlink()

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = run_cli(*train_command(recipe, tiny_flickr8k, tmp_path / "run"), preexec_fn=limit)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "error: cannot write" in output and "Traceback" not in output
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))


def test_a_dataset_without_captions_is_refused(tmp_path):
    (tmp_path / "captions.csv").write_text("image,caption\n")
    with pytest.raises(DataError):
        train(parse_recipe(TINY), tmp_path, tmp_path / "run")


def test_a_photo_that_does_not_open_names_the_command_that_lists_all(tiny_flickr8k, tmp_path):
    (tiny_flickr8k / "Flicker8k_Dataset" / "red_circle_white.jpg").write_bytes(b"no")
    message = r"red_circle_white\.jpg.* is not an image: .*; `sightline doctor --data DATASET` lists all such photos"
    with pytest.raises(ImageError, match=message):
        train(parse_recipe(TINY), tiny_flickr8k, tmp_path / "run")


# -- choices ----------------------------------------------------------------------------------------------------------


def test_the_best_epoch_is_kept_and_training_stops_when_it_no_longer_improves(tiny_flickr8k, tmp_path, monkeypatch):
    scores = iter([0.1, 0.3, 0.2, 0.25, 0.9])
    monkeypatch.setattr("sightline.training.trainer.score", lambda *_: {"cider": next(scores)})
    best = train(parse_recipe(TINY, ["training.epochs=9", "training.patience=2"]), tiny_flickr8k, tmp_path / "run")
    assert best["epoch"] == 1
    assert [record["epoch"] for record in read_history(tmp_path / "run")] == [0, 1, 2, 3]
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["val"]["epoch"] == 1


def test_a_fine_tuned_layer_changes_and_those_below_it_do_not(tiny_flickr8k, tmp_path):
    changes = ["training.epochs=1", "data.cache=false"]
    encoder = {"name": "resnet50", "weights": "random", "image_size": 64, "train": "layer4", "learning_rate": 1e-3}
    trainer = Trainer(parse_recipe(TINY | {"encoder": encoder}, changes), load_dataset(tiny_flickr8k), tmp_path / "run")
    before = {name: p.detach().clone() for name, p in trainer.model.encoder.named_parameters()}
    trainer.run()
    changed = {name for name, p in trainer.model.encoder.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if "layer4" in name}


def test_a_cut_caption_does_not_lower_the_loss_per_character(tiny_flickr8k, tmp_path):
    """Where every character is a token, the loss per character is the loss per token, however many are cut."""
    cut = ["tokenizer.name=char", "tokenizer.max_length=10", "training.epochs=1"]
    train(parse_recipe(TINY, cut), tiny_flickr8k, tmp_path / "run")
    record = read_history(tmp_path / "run")[-1]
    assert record["val_nll_per_character"] == pytest.approx(record["val_nll"])
    texts = [text for example in load_dataset(tiny_flickr8k).examples("val") for text in example.captions]
    mean = sum(len(normalise(text)) + 1 for text in texts) / len(texts)
    assert mean > 12
    assert record["val_nll_per_caption"] == pytest.approx(record["val_nll"] * mean)


def test_curves_and_samples_are_left_for_people(tiny_flickr8k, tmp_path):
    train(parse_recipe(TINY), tiny_flickr8k, tmp_path / "run")
    history = read_history(tmp_path / "run")
    assert len(history) == 4
    assert {"train_nll", "val_nll", "val_nll_per_character", "val_nll_per_caption", "cider", "bleu_4"} <= set(
        history[0]
    )
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
