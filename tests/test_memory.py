"""A memory steers captions towards one's own, says new words, and is refused where it does not belong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawings import DEV, TRAIN

from sightline.cli import run
from sightline.data import load_dataset
from sightline.decoding import DecodingOptions, decode
from sightline.decoding.steps import StepDecoder
from sightline.engine.captioner import Captioner, load
from sightline.engine.retrieval import Memory, make_memory
from sightline.errors import CheckpointError, ConfigError
from sightline.evaluation.scoring import evaluate
from sightline.explain.explanation import explain
from sightline.tokenizers import train_tokenizer
from sightline.training.retrieval import WEIGHTS, remember
from sightline.types import DecoderState, ImageFeatures

WORDS = train_tokenizer("word", ["a dog runs", "a cat sleeps"], min_count=1, max_length=8)


class Flat(StepDecoder):
    """Every word is as likely as any other; what it hears is noted."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def start(self, features: ImageFeatures) -> DecoderState:
        return DecoderState({}, {"none": np.zeros((len(features), 1), np.float32)})

    def step(self, tokens, state):
        self.heard += tokens.tolist()
        return np.zeros((len(tokens), WORDS.size), np.float32), state, {}


def photos(*directions: int) -> ImageFeatures:
    pooled = np.eye(3, dtype=np.float32)[list(directions)]
    return ImageFeatures(pooled[:, None], pooled, 1, 1)


def memory_of(*captions: str, times: int = 2, **settings: float) -> Memory:
    """One photo for each caption, each in a direction of its own and captioned so often."""
    names = [f"{number}.jpg" for number in range(len(captions))]
    made = make_memory(
        "weights", names, [[caption] * times for caption in captions], photos(*range(len(captions))).pooled
    )
    return replace(made, contents=made.contents.model_copy(update=settings))


def told(memory: Memory, features: ImageFeatures, decoder: StepDecoder | None = None, **options) -> list[str]:
    recall = memory.for_model("weights", WORDS)
    chosen = DecodingOptions(max_length=8, **options)
    found = decode(recall.steer(decoder or Flat()), features, chosen)
    return [recall.tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_photo_like_a_remembered_one_is_told_in_its_words(beam: int) -> None:
    memory = memory_of("a dog runs", "a cat sleeps", "runs runs a cat", weight=0.9, neighbours=1)
    assert told(memory, photos(1, 0, 2, 0), beam=beam) == [
        "a cat sleeps",
        "a dog runs",
        "runs runs a cat",
        "a dog runs",
    ]


def test_a_memory_of_no_weight_changes_nothing() -> None:
    features, options = photos(0, 1), DecodingOptions(max_length=8, beam=3, candidates=3)
    steered = decode(memory_of("a dog runs", weight=0).for_model("weights", WORDS).steer(Flat()), features, options)
    plain = decode(Flat(), features, options)
    assert [[one.tokens for one in group] for group in steered] == [[one.tokens for one in group] for group in plain]
    assert steered[0][0].log_probs == pytest.approx(plain[0][0].log_probs, abs=1e-5)


def test_new_words_that_the_captions_repeat_are_said_and_heard_as_the_unknown() -> None:
    decoder = Flat()
    memory = memory_of("a wombat runs", "a cat sleeps", weight=0.9, neighbours=1)
    assert told(memory, photos(0), decoder, beam=1) == ["a wombat runs"]
    assert decoder.heard == [WORDS.start, WORDS.ids["a"], WORDS.unknown, WORDS.ids["runs"]]


def test_a_word_seen_once_may_be_a_slip_and_is_not_said() -> None:
    memory = memory_of("a wombat runs", times=1, weight=0.9)
    assert memory.tokenizer(WORDS).size == WORDS.size
    assert "wombat" not in told(memory, photos(0), beam=1)[0]


def test_captions_do_not_depend_on_the_batch() -> None:
    memory = memory_of("a dog runs", "a cat sleeps", weight=0.4)
    every = told(memory, photos(0, 1, 2, 0), beam=2)
    assert every == [told(memory, photos(one), beam=2)[0] for one in (0, 1, 2, 0)]


def test_probabilities_still_add_up() -> None:
    recall = memory_of("a wombat runs", weight=0.3).for_model("weights", WORDS)
    steered = recall.steer(Flat())
    logits, _, _ = steered.step(np.array([WORDS.start]), steered.start(photos(0)))
    assert logits.shape == (1, recall.tokenizer.size)
    assert np.exp(logits).sum() == pytest.approx(1, abs=1e-5)


def test_a_saved_memory_is_read_again_and_replaced_as_a_whole(tmp_path: Path) -> None:
    memory = memory_of("a dog runs", weight=0.25)
    memory.save(tmp_path / "mine")
    again = Memory.read(tmp_path / "mine")
    assert again.contents == memory.contents
    assert again.signature() == memory.signature()
    assert {file.name for file in (tmp_path / "mine").iterdir()} == {"memory.json", "memory.safetensors"}
    memory_of("a cat sleeps").save(tmp_path / "mine")
    assert Memory.read(tmp_path / "mine").signature() != memory.signature()


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="choose another folder"):
        memory_of("a dog runs").save(tmp_path)
    assert (tmp_path / "photo.jpg").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda plain: plain.update(weight=2), "weight"),
        (lambda plain: plain.update(neighbours=0), "neighbours"),
        (lambda plain: plain.update(extra=1), "extra"),
        (lambda plain: plain["photos"].append({"name": "x", "captions": ["x"]}), "2 photos but vectors of 1"),
        (lambda plain: plain.update(photos=[]), "at least one"),
    ],
)
def test_a_damaged_memory_is_named(tmp_path: Path, damage, told: str) -> None:
    memory_of("a dog runs").save(tmp_path / "mine")
    plain = json.loads((tmp_path / "mine" / "memory.json").read_text())
    damage(plain)
    (tmp_path / "mine" / "memory.json").write_text(json.dumps(plain))
    with pytest.raises((CheckpointError, ConfigError), match=told):
        Memory.read(tmp_path / "mine")


def test_vectors_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    memory_of("a dog runs").save(tmp_path / "mine")
    (tmp_path / "mine" / "memory.safetensors").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="make it again"):
        Memory.read(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="`sightline remember` makes one"):
        Memory.read(tmp_path)


def test_a_memory_of_other_weights_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="run `sightline remember` with this model"):
        load(tiny_model, memory=memory_of("a dog runs"))


# -- with a whole model -----------------------------------------------------------------------------------------------


def test_remembered_photos_are_recalled_and_steer_the_model(tiny_model: Path, tiny_flickr8k_kept: Path) -> None:
    memory, tried = remember(tiny_model, tiny_flickr8k_kept, weight=0.8)
    assert tried == {}
    assert len(memory) == len(TRAIN)
    captioner = load(tiny_model, memory=memory)
    caption = captioner.caption(TRAIN[2].draw())
    first = caption.recalled[0]
    assert (first.name, first.captions) == (TRAIN[2].name, TRAIN[2].captions)
    assert first.similarity > 0.99  # but for what JPEG lost
    assert caption.text != load(tiny_model).caption(TRAIN[2].draw()).text
    assert caption.as_dict()["recalled"][0]["name"] == TRAIN[2].name
    assert captioner.signatures() == [*load(tiny_model).signatures(), memory.signature()]


def test_the_weight_is_chosen_on_dev(tiny_model: Path, tiny_flickr8k_kept: Path, caplog) -> None:
    memory, tried = remember(Captioner(load(tiny_model).checkpoints), tiny_flickr8k_kept)
    assert list(tried) == list(WEIGHTS)
    assert tried[memory.contents.weight] == max(tried.values())
    assert f"only {len(DEV)} dev photos" in caplog.text


def test_all_photos_can_be_remembered_and_a_broken_one_is_left_out(tiny_model: Path, tiny_flickr8k: Path) -> None:
    broken = tiny_flickr8k / "Flicker8k_Dataset" / TRAIN[0].name
    broken.write_bytes(b"no photo")
    memory, _ = remember(tiny_model, tiny_flickr8k, split="all", weight=0.1)
    names = {photo.name for photo in memory.contents.photos}
    assert len(names) == 11
    assert TRAIN[0].name not in names


def test_an_evaluation_names_the_memory_in_its_signature(tiny_model: Path, tiny_flickr8k_kept: Path) -> None:
    memory, _ = remember(tiny_model, tiny_flickr8k_kept, weight=0.5)
    result = evaluate(load(tiny_model, memory=memory), load_dataset(tiny_flickr8k_kept), metrics=("bleu",), resamples=9)
    assert result.signature.endswith(f"+{memory.signature()}")


@pytest.mark.parametrize("occlusion", [False, True])
def test_a_steered_caption_is_explained_new_words_and_all(tiny_model: Path, occlusion: bool) -> None:
    captioner = load(tiny_model, runtime="torch")
    photo = TRAIN[0].draw()
    pooled = captioner.encode([photo])[0].pooled.numpy()
    vectors = np.concatenate([pooled, -pooled])
    memory = make_memory(captioner.signatures()[0], ["a", "b"], [["wombat wombat wombat"] * 2, ["a"]], vectors)
    explained = explain(load(tiny_model, runtime="torch", memory=memory.weighing(0.9)), photo, occlusion=occlusion)
    assert "wombat" in explained.caption.text
    assert all(word.attention is not None for word in explained.caption.words)


def test_the_command_line_remembers_and_captions(tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path, capsys):
    folder, photo = str(tmp_path / "memory"), tmp_path / "photo.png"
    TRAIN[0].draw().save(photo)
    data = str(tiny_flickr8k_kept)
    assert run(["remember", "--data", data, "--model", str(tiny_model), "-o", folder, "--weight", "0.7"]) == 0
    assert "8 photos in" in capsys.readouterr().out
    assert run(["caption", str(photo), "--model", str(tiny_model), "--memory", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["recalled"][0]["name"] == TRAIN[0].name
    assert run(["caption", str(photo), "--model", str(tiny_model), "--memory", str(tmp_path)]) == 1
    assert "is no memory" in capsys.readouterr().err
