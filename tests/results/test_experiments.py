"""The experiments on stored captions and on teacher-forced outputs; every trial on the pages has its command."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import bleu_1
import experiment_sections
import teacher_forced
from script import RESULTS, run
from sightline.data import load_dataset
from sightline.engine.captioner import load
from sightline.recipes.config import load_recipe, recipe_names


def test_a_full_stop_counts_as_a_word_where_references_have_one() -> None:
    found = bleu_1.measure(["a dog runs", "two cats"], [["A dog sits .", "Dog ."], ["One cat sleeps"]])
    assert found["ours"]["bleu"][0] == pytest.approx(100 * 2 / 5, abs=0.01)
    assert found["with a full stop"]["bleu"][0] == pytest.approx(100 * 3 / 7, abs=0.01)  # the second has none
    assert (found["ours"]["words"], found["with a full stop"]["words"]) == (2.5, 3.5)
    assert found["BLEU-1 by length"]["up to 8 words"] == {"captions": 2, "bleu_1": 40.0}
    assert found["BLEU-1 by length"]["over 12"] == {"captions": 0}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.training.feature_cache.cache_folder", lambda: tmp_path / "cache")


@torch.inference_mode()
def test_a_teacher_forced_output_follows_the_human_words(
    finished_run: Path, tiny_flickr8k_kept: Path, own_cache: None
) -> None:
    captioner = load(finished_run, runtime="torch")
    examples = load_dataset(tiny_flickr8k_kept).examples("val")
    outputs = teacher_forced.forced_outputs(captioner, examples, "float32")
    (backend,) = captioner.backends
    for example, texts in zip(examples, outputs):
        (features,) = captioner.encode([captioner.prepare(example.image)])
        for caption, text in zip(example.captions, texts, strict=True):
            state = backend.model.decoder.start(features)
            best = []
            for token in backend.tokenizer.encode(caption)[:-1]:
                logits, state, _ = backend.model.decoder.step(torch.tensor([token]), state)
                best.append(int(logits.argmax()))
            assert text == backend.tokenizer.decode(best)


def test_both_kinds_of_output_are_scored_and_a_model_measured_again_replaces_itself(
    finished_run: Path, tiny_flickr8k_kept: Path, own_cache: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(finished_run), "--data", str(tiny_flickr8k_kept), "--results", str(tmp_path)]
    assert run(teacher_forced.main, arguments) == 0
    assert run(teacher_forced.main, [*arguments, "--limit", "1"]) == 0
    assert capsys.readouterr().out.count("teacher-forced: bleu_1") == 2
    values = json.loads((tmp_path / "teacher_forced.json").read_text())
    assert [model["photos"] for model in values["models"]] == [1]
    assert {"bleu_1", "bleu_4", "cider"} <= set(values["models"][0]["teacher-forced"])
    assert "| `tiny-words` | teacher-forced |" in experiment_sections.teacher_forced(values)


def test_the_sources_tables_are_filled_as_rows_come(made_results: Path) -> None:
    encoders = experiment_sections.encoders(made_results).splitlines()
    assert "| VGG-19 | 64.8 | 15.5 | 17.1 | 20.0 | 20.8 | 22.0 | 44.0 |" in encoders
    assert "| ResNet-152 | 65.7 | 16.5 | 17.9 |  |  |  |  |" in encoders
    assert "| 0.75 | 0.86 |  |  |  |" in experiment_sections.losses(made_results)
    curve = json.loads((made_results / "sat-soft-vgg19.curve.json").read_text())
    curve["epochs"][1] |= {"train_nll": 0.5, "val_nll": 0.84}  # the last that was best
    (made_results / "clip-transformer.curve.json").write_text(json.dumps(curve))
    assert "| characters, CLIP (`clip-transformer`) | 0.75 | 0.86 | 0.50 | 0.84 | 3 |" in experiment_sections.losses(
        made_results
    )


VERBS = ("train", "evaluate", "export", "pseudo-caption")


def test_every_trial_has_a_command_that_its_recipe_takes() -> None:
    trials = json.loads((RESULTS / "trials.json").read_text())
    assert set(trials) == set(experiment_sections.TRIALS)
    for values in trials.values():
        for trial in values["trials"]:
            assert trial["commands"] and len(trial["cells"]) == len(values["columns"])
            for command in trial["commands"]:
                words = shlex.split(command)
                if words[0] == "python":
                    assert (RESULTS.parent / words[1]).is_file()
                else:
                    assert words[0] == "sed" or (words[0] == "sightline" and words[1] in VERBS)
                if words[1] == "train":
                    assert words[2] in recipe_names()
                    load_recipe(words[2], [value for option, value in pairwise(words) if option == "--set"])
