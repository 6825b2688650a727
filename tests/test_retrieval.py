"""A datastore draws captions towards its own, adds new words, and is rejected where it does not belong."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browsing import calibration
from drawings import DEV, TRAIN

from sightline.cli import run
from sightline.data import load_dataset
from sightline.decoding import DecodingOptions, decode
from sightline.decoding.hypotheses import DecoderState, StepDecoder
from sightline.engine.captioner import Captioner, load
from sightline.engine.retrieval import FLOOR, Datastore, RetrievalDecoder, Retriever
from sightline.errors import CheckpointError, ConfigError
from sightline.evaluation.scoring import evaluate
from sightline.explain.explanation import explain
from sightline.tokenizers import train_tokenizer
from sightline.training.retrieval import WEIGHTS, build_datastore
from sightline.types import ImageFeatures

WORDS = train_tokenizer("word", ["a dog runs", "a cat sleeps"], min_count=1, max_length=8)


class Flat(StepDecoder):
    """Every word is as likely as any other; the tokens it gets are noted."""

    def __init__(self) -> None:
        self.inputs: list[int] = []

    def start(self, features: ImageFeatures) -> DecoderState:
        return DecoderState({}, {"none": np.zeros((len(features), 1), np.float32)})

    def step(self, tokens, state):
        self.inputs += tokens.tolist()
        return np.zeros((len(tokens), WORDS.size), np.float32), state, {}


def photos(*directions: int) -> ImageFeatures:
    pooled = np.eye(3, dtype=np.float32)[list(directions)]
    return ImageFeatures(pooled[:, None], pooled, 1, 1)


def datastore_of(*captions: str, times: int = 2, **settings: float) -> Datastore:
    """One photo for each caption, each in a direction of its own and captioned so often."""
    names = [f"{number}.jpg" for number in range(len(captions))]
    made = Datastore.of(
        "weights", names, [[caption] * times for caption in captions], photos(*range(len(captions))).pooled
    )
    return replace(made, contents=made.contents.model_copy(update=settings))


def captions_with(
    datastore: Datastore, features: ImageFeatures, decoder: StepDecoder | None = None, **options
) -> list[str]:
    retriever = Retriever(datastore, WORDS)
    chosen = DecodingOptions(max_length=8, **options)
    found = decode(RetrievalDecoder(decoder or Flat(), retriever), features, chosen)
    return [retriever.tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_photo_like_a_stored_one_is_captioned_in_its_words(beam: int) -> None:
    datastore = datastore_of("a dog runs", "a cat sleeps", "runs runs a cat", weight=0.9, neighbours=1)
    assert captions_with(datastore, photos(1, 0, 2, 0), beam=beam) == [
        "a cat sleeps",
        "a dog runs",
        "runs runs a cat",
        "a dog runs",
    ]


def test_a_datastore_of_no_weight_changes_nothing() -> None:
    features, options = photos(0, 1), DecodingOptions(max_length=8, beam=3, candidates=3)
    retriever = Retriever(datastore_of("a dog runs", weight=0), WORDS)
    augmented = decode(RetrievalDecoder(Flat(), retriever), features, options)
    plain = decode(Flat(), features, options)
    assert [[one.tokens for one in group] for group in augmented] == [[one.tokens for one in group] for group in plain]
    assert augmented[0][0].log_probs == pytest.approx(plain[0][0].log_probs, abs=1e-5)


def test_new_words_that_the_captions_repeat_are_used_and_reach_the_decoder_as_the_unknown() -> None:
    decoder = Flat()
    datastore = datastore_of("a wombat runs", "a cat sleeps", weight=0.9, neighbours=1)
    assert captions_with(datastore, photos(0), decoder, beam=1) == ["a wombat runs"]
    assert decoder.inputs == [WORDS.start, WORDS.ids["a"], WORDS.unknown, WORDS.ids["runs"]]


def test_a_word_that_occurs_once_may_be_a_slip_and_is_not_used() -> None:
    datastore = datastore_of("a wombat runs", times=1, weight=0.9)
    assert datastore.tokenizer(WORDS).size == WORDS.size
    assert "wombat" not in captions_with(datastore, photos(0), beam=1)[0]


def test_captions_do_not_depend_on_the_batch() -> None:
    datastore = datastore_of("a dog runs", "a cat sleeps", weight=0.4)
    every = captions_with(datastore, photos(0, 1, 2, 0), beam=2)
    assert every == [captions_with(datastore, photos(one), beam=2)[0] for one in (0, 1, 2, 0)]


@pytest.mark.parametrize("nearest", [0, 1], ids=["with a new word", "without one"])
def test_probabilities_still_add_up(nearest: int) -> None:
    retriever = Retriever(datastore_of("a wombat runs", "a cat sleeps", weight=0.3, neighbours=1), WORDS)
    decoder = RetrievalDecoder(Flat(), retriever)
    logits, _, _ = decoder.step(np.array([WORDS.start]), decoder.start(photos(nearest)))
    assert logits.shape == (1, retriever.tokenizer.size)
    assert np.exp(logits).sum() == pytest.approx(1, abs=1e-5)


def test_the_two_distributions_are_multiplied_with_exponents_that_add_up_to_one() -> None:
    class Certain(Flat):
        def step(self, tokens, state):
            logits, state, extras = super().step(tokens, state)
            logits[:, WORDS.ids["cat"]] = 3
            return logits, state, extras

    retriever = Retriever(datastore_of("dog dog dog", weight=0.25), WORDS)
    decoder = RetrievalDecoder(Certain(), retriever)
    logits, _, _ = decoder.step(np.array([WORDS.start]), decoder.start(photos(0)))
    cat, dog, runs = (logits[0, WORDS.ids[word]] for word in ("cat", "dog", "runs"))
    assert cat - runs == pytest.approx(0.75 * 3, abs=1e-4)
    assert dog - runs == pytest.approx(0.25 * np.log((1 + FLOOR) / FLOOR), abs=0.1)


def test_a_saved_datastore_is_read_again_and_replaced_as_a_whole(tmp_path: Path) -> None:
    datastore = datastore_of("a dog runs", weight=0.25)
    datastore.save(tmp_path / "mine")
    again = Datastore.read(tmp_path / "mine")
    assert again.contents == datastore.contents
    assert again.signature() == datastore.signature()
    assert {file.name for file in (tmp_path / "mine").iterdir()} == {"datastore.json", "datastore.safetensors"}
    datastore_of("a cat sleeps").save(tmp_path / "mine")
    assert Datastore.read(tmp_path / "mine").signature() != datastore.signature()


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="choose another folder"):
        datastore_of("a dog runs").save(tmp_path)
    assert (tmp_path / "photo.jpg").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda plain: plain.update(weight=2), "weight"),
        (lambda plain: plain.update(neighbours=0), "neighbours"),
        (lambda plain: plain.update(extra=1), "extra"),
        (lambda plain: plain["photos"].append({"name": "x", "captions": ["x"]}), "2 photos but 1 vectors"),
        (lambda plain: plain.update(photos=[]), "at least one"),
    ],
)
def test_a_damaged_datastore_is_named(tmp_path: Path, damage, message: str) -> None:
    datastore_of("a dog runs").save(tmp_path / "mine")
    plain = json.loads((tmp_path / "mine" / "datastore.json").read_text())
    damage(plain)
    (tmp_path / "mine" / "datastore.json").write_text(json.dumps(plain))
    with pytest.raises((CheckpointError, ConfigError), match=message):
        Datastore.read(tmp_path / "mine")


def test_too_many_vectors_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datastore_of("a dog runs").save(tmp_path / "mine")
    monkeypatch.setattr("sightline.engine.retrieval.LARGEST", 16)
    with pytest.raises(CheckpointError, match=r"datastore\.safetensors has 0 MB, more than 0$"):
        Datastore.read(tmp_path / "mine")


def test_vectors_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    datastore_of("a dog runs").save(tmp_path / "mine")
    (tmp_path / "mine" / "datastore.safetensors").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="build it again"):
        Datastore.read(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="build one with `sightline retrieval build`"):
        Datastore.read(tmp_path)


def test_a_datastore_of_other_weights_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="run `sightline retrieval build` with this model"):
        load(tiny_model, datastore=datastore_of("a dog runs"))


# -- with a whole model -----------------------------------------------------------------------------------------------


def test_stored_photos_are_retrieved_and_change_the_caption(tiny_model: Path, tiny_flickr8k_kept: Path) -> None:
    datastore, scores = build_datastore(tiny_model, tiny_flickr8k_kept, weight=0.8)
    assert scores == {}
    assert len(datastore) == len(TRAIN)
    captioner = load(tiny_model, datastore=datastore)
    caption = captioner.caption(TRAIN[2].draw())
    first = caption.neighbours[0]
    assert (first.name, first.captions) == (TRAIN[2].name, TRAIN[2].captions)
    assert first.similarity > 0.99  # but for what JPEG lost
    assert caption.text != load(tiny_model).caption(TRAIN[2].draw()).text
    assert caption.as_dict()["neighbours"][0]["name"] == TRAIN[2].name
    assert captioner.signatures() == [*load(tiny_model).signatures(), datastore.signature()]


def test_the_weight_is_chosen_on_dev(tiny_model: Path, tiny_flickr8k_kept: Path, caplog) -> None:
    datastore, scores = build_datastore(Captioner(load(tiny_model).backends), tiny_flickr8k_kept)
    assert list(scores) == list(WEIGHTS)
    assert scores[datastore.contents.weight] == max(scores.values())
    assert f"only {len(DEV)} val photos" in caplog.text


def test_all_photos_can_be_stored_and_a_broken_one_is_left_out(tiny_model: Path, tiny_flickr8k: Path) -> None:
    broken = tiny_flickr8k / "Flicker8k_Dataset" / TRAIN[0].name
    broken.write_bytes(b"no photo")
    datastore, _ = build_datastore(tiny_model, tiny_flickr8k, split="all", weight=0.1)
    names = {photo.name for photo in datastore.contents.photos}
    assert len(names) == 11
    assert TRAIN[0].name not in names


def test_an_evaluation_names_the_datastore_in_its_signature(tiny_model: Path, tiny_flickr8k_kept: Path) -> None:
    datastore, _ = build_datastore(tiny_model, tiny_flickr8k_kept, weight=0.5)
    result = evaluate(
        load(tiny_model, datastore=datastore), load_dataset(tiny_flickr8k_kept), metrics=("bleu",), resamples=9
    )
    assert result.signature.endswith(f"+{datastore.signature()}")


def test_photos_unlike_the_training_photos_stay_unsure(tiny_model: Path, tiny_flickr8k: Path, tmp_path: Path) -> None:
    """That half of the mark depends on the photo alone; the other needs calibrated confidence."""
    folder = shutil.copytree(tiny_model, tmp_path / "calibrated")
    datastore, _ = build_datastore(load(folder), tiny_flickr8k, weight=0.3)
    photo = next((tiny_flickr8k / "Flicker8k_Dataset").iterdir())
    dimension = load(folder).backends[0].dimension
    for limit, unsure in ((1.3e6, False), (1.3e-6, True)):
        whole = calibration(dimension)
        photos = whole.photos.model_copy(update={"limit": limit})
        captions = whole.captions.model_copy(update={"unsure_below": 1.0})
        whole.model_copy(update={"photos": photos, "captions": captions}).save(folder)
        caption = load(folder, datastore=datastore).caption(photo, beam=2, candidates=2)
        plain = load(folder).caption(photo)
        assert plain.unsure and caption.ood_score == pytest.approx(plain.ood_score)
        assert [one.unsure for one in (caption, *caption.others, *caption.words)] == [unsure] * (2 + len(caption.words))
        assert caption.calibrated is None and caption.neighbours
        assert caption.certainty().startswith("unsure: unlike the photos") == unsure


@pytest.mark.parametrize("occlusion", [False, True])
def test_a_caption_with_retrieval_is_explained_new_words_and_all(tiny_model: Path, occlusion: bool) -> None:
    captioner = load(tiny_model, runtime="torch")
    photo = TRAIN[0].draw()
    pooled = captioner.encode([captioner.prepare(photo)])[0].pooled.numpy()
    vectors = np.concatenate([pooled, -pooled])
    datastore = Datastore.of(captioner.signatures()[0], ["a", "b"], [["wombat wombat wombat"] * 2, ["a"]], vectors)
    explained = explain(
        load(tiny_model, runtime="torch", datastore=datastore.with_weight(0.9)), photo, occlusion=occlusion
    )
    assert "wombat" in explained.caption.text
    assert all(word.attention is not None for word in explained.caption.words)


def test_the_command_line_builds_a_datastore_and_captions_with_it(
    tiny_model: Path, tiny_flickr8k_kept: Path, tmp_path: Path, capsys
):
    folder, photo = str(tmp_path / "datastore"), tmp_path / "photo.png"
    TRAIN[0].draw().save(photo)
    data = str(tiny_flickr8k_kept)
    assert run(["retrieval", "build", "--data", data, "--model", str(tiny_model), "-o", folder, "--weight", "0.7"]) == 0
    assert "8 photos in" in capsys.readouterr().out
    assert run(["caption", str(photo), "--model", str(tiny_model), "--datastore", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["neighbours"][0]["name"] == TRAIN[0].name
    assert run(["caption", str(photo), "--model", str(tiny_model), "--datastore", str(tmp_path)]) == 1
    assert "is no datastore" in capsys.readouterr().err
