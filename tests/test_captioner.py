"""The captioner on top of a model folder: every way in, lists and streams, several models together."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_checkpoints import LENGTH, tiny, tokenizer

import sightline
from sightline.engine.captioner import Captioner, load, prepare_image
from sightline.engine.retrieval import Datastore
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import CheckpointError, ConfigError, ImageError
from sightline.io.preprocess import Preprocess
from sightline.nn.checkpoint import CaptionModel, Checkpoint, save_checkpoint
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import build_encoder
from sightline.types import Caption, Failure


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "model", tiny())
    return tmp_path / "model"


@pytest.fixture
def captioner(folder: Path) -> Captioner:
    return load(folder)


def photo(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (24, 30, 3), dtype=np.uint8))


def test_a_captioner_names_its_device_and_runtimes(captioner: Captioner) -> None:
    assert captioner.device == "cpu"
    assert captioner.runtimes == ["torch"]


def test_every_way_in_gives_the_same_words(captioner: Captioner, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo().save(path)
    sources = [path, str(path), path.read_bytes(), photo(), np.asarray(photo())]
    captions = [captioner.caption(source) for source in sources]
    assert captions[0].words
    assert {caption.text for caption in captions} == {captions[0].text}
    assert {caption.score for caption in captions} == {captions[0].score}
    assert [caption.source for caption in captions] == [str(path), str(path), "", "", ""]


def test_a_list_gives_a_list_in_order(captioner: Captioner) -> None:
    pictures = [photo(seed) for seed in range(5)]
    together = captioner.caption(pictures)
    assert isinstance(together, list)
    for caption, picture in zip(together, pictures, strict=True):
        alone = captioner.caption(picture)
        assert caption.text == alone.text
        assert caption.score == pytest.approx(alone.score, abs=1e-4)
    assert captioner.caption([]) == []
    assert len(captioner.caption([photo()])) == 1


def test_a_caption_has_attention_probabilities_and_alternatives(captioner: Captioner) -> None:
    caption = captioner.caption(photo(), alternatives=2)
    assert 0 < caption.confidence < 1
    for word in caption.words:
        assert 0 < word.probability < 1
        assert word.attention.shape == (2, 2)
        assert len(word.alternatives) == 2
    assert " ".join(word.text for word in caption.words) == caption.text
    assert caption.photo.size == (30, 24)  # undistorted, though the encoder gets a square


def test_a_decoder_without_attention_gives_words_without_attention(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny("lstm"))
    assert all(word.attention is None for word in load(tmp_path).caption(photo()).words)


def test_a_stream_reports_failures_in_place(captioner: Captioner, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    photo().save(good)
    bad.write_bytes(b"not a picture")
    sources = [good, bad, photo(1), tmp_path / "absent.png", b"", good]
    for batch_size in (1, 2, 16):
        results = list(captioner.stream(sources, batch_size=batch_size))
        assert [type(result) for result in results] == [Caption, Failure, Caption, Failure, Failure, Caption]
        assert results[0].text == results[-1].text
        assert results[1].source == str(bad)
        assert "not an image" in results[1].reason
        assert "does not exist" in results[3].reason
        assert results[0].photo is None


def test_a_stream_reads_no_further_than_it_must(captioner: Captioner) -> None:
    taken = []

    def sources():
        for number in range(100):
            taken.append(number)
            yield photo(number)

    next(captioner.stream(sources(), batch_size=4))
    assert len(taken) == 4


def test_a_bad_photo_raises_alone_and_is_a_failure_among_others(captioner: Captioner, tmp_path: Path) -> None:
    absent = tmp_path / "absent.png"
    with pytest.raises(ImageError, match=r"absent\.png does not exist"):
        captioner.caption(absent)
    good, bad, other = captioner.caption([photo(), absent, photo(1)])
    assert isinstance(good, Caption) and isinstance(other, Caption)
    assert (good.text, other.text) == (captioner.caption(photo()).text, captioner.caption(photo(1)).text)
    assert isinstance(bad, Failure) and bad.source == str(absent) and "does not exist" in bad.reason


def test_an_unknown_option_suggests_the_nearest(captioner: Captioner) -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'beem' \(did you mean 'beam'\?\)"):
        captioner.caption(photo(), beem=3)
    with pytest.raises(ConfigError, match="beam is 0"):
        captioner.caption(photo(), beam=0)
    with pytest.raises(ConfigError, match="max_length is 10, this model's captions have at most 9"):
        captioner.caption(photo(), max_length=10)


def test_the_model_s_decoding_options_are_the_default(captioner: Captioner) -> None:
    defaults = captioner.options()
    assert (defaults.beam, defaults.length_penalty, defaults.max_length) == (2, 0.5, LENGTH)
    assert captioner.caption(photo()) == captioner.caption(photo(), beam=2, length_penalty=0.5)
    assert captioner.caption(photo()) != captioner.caption(photo(1))
    assert len(captioner.caption(photo(), max_length=4).words) <= 3
    assert len(captioner.caption(photo(), candidates=2).others) == 1


def test_candidates_widen_the_beam_unless_one_is_given_or_captions_are_sampled(captioner: Captioner) -> None:
    assert len(captioner.caption(photo(), candidates=5).others) == 4
    assert captioner.options(candidates=5).beam == 5
    assert captioner.options(candidates=1).beam == captioner.defaults.beam == 2
    assert captioner.options(candidates=5, sample=True).beam == 2
    with pytest.raises(ConfigError, match="candidates is 5 but beam is 3, widen the beam or ask for fewer"):
        captioner.options(candidates=5, beam=3)
    with pytest.raises(ConfigError, match="candidates is '5', give int"):
        captioner.options(candidates="5")


def test_the_four_stages_give_what_caption_gives(captioner: Captioner) -> None:
    pictures = [photo(seed) for seed in range(3)]
    images = [captioner.prepare(picture, picture_side=640) for picture in pictures]
    features = captioner.encode(images)
    found = captioner.decode(features, captioner.options(candidates=3))
    captions = captioner.finish(found, features, images)
    assert captions == captioner.caption(pictures, candidates=3)
    assert [caption.photo.size for caption in captions] == [(30, 24)] * 3
    with_sources = captioner.finish(found, features)
    assert [caption.photo for caption in with_sources] == [None] * 3


def test_photos_are_prepared_in_other_processes_without_a_model(captioner: Captioner, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo().save(path)
    work = partial(prepare_image, preprocesses=captioner.preprocesses)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        image = pool.submit(work, str(path)).result()
    features = captioner.encode([image])
    (caption,) = captioner.finish(captioner.decode(features), features, [image])
    assert caption == captioner.caption(path)
    script = "import sys, sightline.engine.captioner\nsys.exit('torch' in sys.modules or 'onnxruntime' in sys.modules)"
    environment = {"PYTHONPATH": str(Path(sightline.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=60).returncode == 0


def test_a_loaded_captioner_is_pickled_by_its_folders(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "other", tiny(seed=1))
    monkeypatch.chdir(tmp_path)
    first = load("model", runtime="torch")
    pooled = first.encode([first.prepare(photo())])[0].pooled.numpy()
    Datastore.of(first.signatures()[0], ["a"], [["a red dog"] * 2], pooled).with_weight(0.9).save("store")
    captioners = [first, load("model", "other"), load("model", datastore="store")]
    pickled = [pickle.dumps(captioner) for captioner in captioners]
    monkeypatch.chdir(tmp_path.parent)
    assert max(map(len, pickled)) < 1000, "no weights"
    for captioner, data in zip(captioners, pickled):
        again = pickle.loads(data)
        assert again.caption(photo()) == captioner.caption(photo())
        assert again.runtimes == captioner.runtimes
    assert pickle.loads(pickled[2]).caption(photo()).neighbours[0].name == "a"
    with pytest.raises(ConfigError, match=r"only a captioner that sightline\.load gave can be pickled"):
        pickle.dumps(Captioner([TorchBackend(tiny())]))


def test_several_models_of_one_vocabulary_act_together(tmp_path: Path) -> None:
    for seed in range(2):
        save_checkpoint(tmp_path / str(seed), tiny(seed=seed))
    save_checkpoint(tmp_path / "char", tiny(text="char"))
    alone, both = load(tmp_path / "0"), load(tmp_path / "0", tmp_path / "1")
    twice = load(tmp_path / "0", tmp_path / "0")
    assert twice.caption(photo()).text == alone.caption(photo()).text
    assert both.caption(photo()).score != pytest.approx(alone.caption(photo()).score)
    with pytest.raises(ConfigError, match="one vocabulary"):
        load(tmp_path / "0", tmp_path / "char")


def test_each_model_of_an_ensemble_gets_the_photo_as_it_was_trained() -> None:
    words = tokenizer()
    backends = []
    for size, mean in ((16, 0.2), (24, 0.7)):
        encoder = build_encoder("patches", image_size=size, patch_size=8, width=8, heads=2, blocks=1)
        encoder.preprocess = replace(encoder.preprocess, mean=(mean, 0.5, 0.5), std=(0.3, mean, 0.4))
        decoder = build_decoder(
            "transformer", features=8, vocabulary=words.size, max_length=LENGTH, width=8, heads=2, blocks=1
        )
        backends.append(TorchBackend(Checkpoint(CaptionModel(encoder, decoder), words)))
    both = Captioner(backends)
    features = both.encode([both.prepare(photo()), both.prepare(photo(1))])
    for backend, found in zip(backends, features):
        expected = backend.encode(np.stack([backend.preprocess.pixels(photo()), backend.preprocess.pixels(photo(1))]))
        np.testing.assert_allclose(found.grid, expected.grid, rtol=1e-5)


def test_a_model_of_torch_is_called_by_one_thread(captioner: Captioner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.engine.captioner.all_threads", lambda: 4)
    assert captioner.for_threads(1) == (captioner, 1)
    assert captioner.for_threads(2) == (captioner, 1)


def test_a_prepared_photo_knows_which_part_of_it_is_encoded() -> None:
    square = Preprocess(size=20, resize=20, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), fit="crop")
    image = prepare_image(Image.new("RGB", (80, 40)), [square, replace(square, fit="squash")], picture_side=16)
    assert (image.size, image.frame) == ((80, 40), (0.25, 0.0, 0.75, 1.0))
    assert [pixels.shape for pixels in image.pixels] == [(20, 20, 3)] * 2
    assert image.picture.size == (16, 16)


def test_alternatives_of_a_word_are_those_of_its_first_token(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny(text="char"))
    captioner = load(tmp_path)
    features = captioner.encode([captioner.prepare(photo())])
    found = captioner.decode(features, captioner.options(alternatives=2, min_length=4))
    ((hypothesis,),), (caption,) = found, captioner.finish(found, features)
    words = captioner.tokenizer.words(hypothesis.tokens)
    assert max(len(positions) for _, positions in words) > 1
    for word, (_, positions) in zip(caption.words, words, strict=True):
        expected = [
            (captioner.tokenizer.tokens[token], share) for token, share in hypothesis.alternatives[positions[0]]
        ]
        assert list(word.alternatives) == expected


def test_a_folder_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no model folder"):
        load(tmp_path / "nowhere")
