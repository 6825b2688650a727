"""Explanations: heat maps are bright where the model attends, on the undistorted photo, and in a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from explaining import CAPTIONS, KINDS, caption, checkpoint, peaked, photo
from PIL import Image
from torch import Tensor

from sightline.decoding.hypotheses import DecoderState
from sightline.engine.captioner import Captioner
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ConfigError
from sightline.explain import Explanation, explain
from sightline.explain.explanation import CELLS, hide, occlusion_maps, teacher_forced
from sightline.explain.heatmap import HIGHEST, overlay, paper_map, paper_overlay, scaled, upsampled
from sightline.explain.picture import WIDTH, columns_for, draw
from sightline.io.preprocess import Preprocess
from sightline.nn.checkpoint import CaptionModel, Checkpoint
from sightline.nn.decoders.base import Decoder
from sightline.nn.encoders.base import Encoder
from sightline.tokenizers import train_tokenizer
from sightline.types import Caption, ImageFeatures, Word

# Maps


@pytest.mark.parametrize("size", [(140, 70), (33, 90), (7, 7), (3, 1)])
def test_a_map_becomes_as_large_as_the_photo_and_stays_in_range(size: tuple[int, int]) -> None:
    smooth = upsampled(peaked(), size)
    assert smooth.shape == size[::-1]
    assert smooth.min() >= 0.01 - 1e-9 and smooth.max() <= 0.52 + 1e-9
    assert upsampled(np.full((4, 9), 0.3), size) == pytest.approx(0.3)


def test_a_smoothed_map_peaks_and_balances_at_its_cell() -> None:
    smooth = upsampled(peaked(row=1, column=5) - 0.01, (140, 70))
    assert np.unravel_index(smooth.argmax(), smooth.shape) == pytest.approx((14.5, 109.5), abs=1)
    rows, columns = np.indices(smooth.shape)
    balance = (smooth * rows).sum() / smooth.sum(), (smooth * columns).sum() / smooth.sum()
    assert balance == pytest.approx((14.5, 109.5), abs=2)
    inside = smooth[5:25, 90:130].sum() / smooth.sum()  # within one cell around
    assert inside > 0.8


def test_the_papers_map_is_sixteen_times_as_large_and_smoothed_by_twenty_pixels() -> None:
    grid = np.zeros((14, 14))
    grid[6, 6] = 1.0
    smooth = paper_map(grid)
    assert smooth.shape == (224, 224)
    assert smooth.sum() == pytest.approx(256, rel=1e-3)  # 16 x 16 pixels for a cell
    assert np.unravel_index(smooth.argmax(), smooth.shape) == pytest.approx((103.5, 103.5), abs=1)
    profile, position = smooth.sum(0) / smooth.sum(), np.arange(224)
    variance = (profile * (position - 103.5) ** 2).sum()
    assert variance == pytest.approx(20**2 + 16**2 / 6, rel=0.02)  # the Gaussian's and the linear interpolation's
    assert paper_map(np.full((7, 5), 0.3)) == pytest.approx(0.3)


def test_the_papers_picture_is_white_where_attention_is_highest_and_dark_elsewhere() -> None:
    photo = Image.new("RGB", (70, 70), (200, 40, 40))
    pixels = np.asarray(paper_overlay(photo, peaked(row=1, column=5)), int)
    row, column = np.unravel_index(pixels.sum(-1).argmax(), (70, 70))
    assert row < 20 and column > 45  # the smoothed peak leans to the corner, where less is mixed in
    assert pixels[row, column] == pytest.approx((244, 212, 212), abs=2)  # 80 % white
    assert pixels[65, 5] == pytest.approx((40, 8, 8), abs=3)  # 80 % black
    assert not np.array_equal(np.asarray(draw(caption("dog"))), np.asarray(draw(caption("dog"), paper=True)))


def test_only_a_picture_can_have_the_papers_maps(tmp_path: Path) -> None:
    explanation = Explanation(caption("dog"), "attention")
    with pytest.raises(ConfigError, match=r"name a file that ends in \.png"):
        explanation.save(tmp_path / "dog.html", paper=True)
    explanation.save(tmp_path / "dog.png", paper=True)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "dog.png")), np.asarray(explanation.picture(paper=True)))


def test_every_cell_and_grid_reaches_full_heat_once_smoothed() -> None:
    for row, column in ((0, 0), (3, 3), (6, 1)):
        (heat,) = scaled([peaked(row, column)])
        assert upsampled(heat, (70, 70)).max() == pytest.approx(1, abs=0.03)
        assert heat.max() <= HIGHEST


def test_uniform_or_faint_attention_stays_dark() -> None:
    even, faint = np.full((7, 7), 1 / 49), np.full((7, 7), 0.02)
    faint[2, 2] += 0.001
    heat_maps = scaled([peaked(), even, faint])
    assert np.isfinite(heat_maps).all()
    assert heat_maps[1].max() == 0
    assert heat_maps[2].max() < 0.05
    assert scaled([even]).max() == 0


def test_hot_pixels_are_bright_and_colourful_and_cold_ones_dark_and_grey() -> None:
    shown = np.asarray(overlay(Image.new("RGB", (140, 70), (60, 200, 60)), scaled([peaked()])[0]), int)
    lamp, night = shown[15, 110], shown[60, 20]
    assert lamp.sum() > 2 * night.sum()
    assert np.ptp(lamp) > 80 > 25 > np.ptp(night)


# What the model saw


def test_a_squashed_photo_is_shown_undistorted() -> None:
    assert Preprocess(size=32, fit="squash").crop(photo(60, 40)).size == (60, 40)
    assert Preprocess(size=32, fit="squash").crop(photo(60, 40), longest=30).size == (30, 20)
    assert Preprocess(size=32, fit="squash").crop(Image.new("RGB", (1, 5000))).size == (1, 640)


def test_of_a_cropped_photo_only_the_middle_is_shown() -> None:
    image = Image.new("RGB", (300, 100), "red")
    image.paste("blue", (100, 0, 200, 100))
    crop = Preprocess(size=80, resize=100).crop(image)
    assert crop.size == (80, 80)
    assert crop.getcolors() == [(6400, (0, 0, 255))]


# Every decoder


@pytest.mark.parametrize("kind", KINDS)
def test_every_decoder_is_explained(kind: str) -> None:
    explanation = explain(Captioner([TorchBackend(checkpoint(kind))]), photo())
    assert explanation.method == ("occlusion" if kind == "lstm" else "attention")
    words = explanation.caption.words
    assert len(words) >= 3
    for word in words:
        assert word.attention.shape == ((CELLS, CELLS) if kind == "lstm" else (4, 4))
        assert len(word.alternatives) == 5
        assert (word.gate is not None) == (kind in ("soft", "hard"))
    assert explanation.caption.photo.size == (60, 40)
    assert len(explanation.caption.others) == 2
    assert (explanation.by_head is not None) == (kind == "transformer")
    picture = explanation.picture()
    assert picture.mode == "RGB" and picture.width == WIDTH
    assert "<!doctype html>" in explanation.page()


def test_the_heads_average_to_the_words_attention() -> None:
    explanation = explain(Captioner([TorchBackend(checkpoint("transformer"))]), photo())
    words = explanation.caption.words
    assert explanation.by_head.shape == (len(words), 3, 2, 4, 4)
    assert explanation.by_head.mean((1, 2)) == pytest.approx(np.stack([word.attention for word in words]), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forcing_a_caption_gives_the_search_s_probabilities(kind: str) -> None:
    captioner = Captioner([TorchBackend(checkpoint(kind))])
    features = captioner.encode([captioner.prepare(photo()), captioner.prepare(photo(seed=1))])
    found = captioner.finish(captioner.decode(features), features)[0]
    output = teacher_forced(captioner.decoder, features[0], found.tokens)
    assert output.log_probs.shape == (2, len(found.tokens))
    assert np.exp(output.log_probs[0]).tolist() == pytest.approx([word.probability for word in found.words], abs=1e-5)
    assert teacher_forced(captioner.decoder, features[0], ()).log_probs.shape == (2, 0)


def test_an_ensemble_is_explained_without_heads() -> None:
    explanation = explain(Captioner([TorchBackend(checkpoint("transformer", seed)) for seed in (0, 1)]), photo())
    assert explanation.method == "attention" and explanation.by_head is None
    mixed = explain(Captioner([TorchBackend(checkpoint(kind)) for kind in ("transformer", "lstm")]), photo())
    assert mixed.method == "occlusion"


def test_options_reach_the_search() -> None:
    captioner = Captioner([TorchBackend(checkpoint("transformer"))])
    explanation = explain(captioner, photo(), beam=1, alternatives=2, max_length=5)
    assert explanation.caption.others == ()
    assert len(explanation.caption.words) <= 4
    assert all(len(word.alternatives) == 2 for word in explanation.caption.words)
    assert explain(captioner, photo(), sample=True, seed=3).caption.words
    assert explain(captioner, photo(), occlusion=True).method == "occlusion"
    with pytest.raises(ConfigError, match="unknown option 'beams'"):
        explain(captioner, photo(), beams=2)


# Occlusion


class Corner(Encoder):
    """Sees how bright one corner is, and nothing else."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__()
        self.preprocess = Preprocess(size=64, resize=64, mean=(0, 0, 0), std=(1, 1, 1), fit="squash")
        self.row, self.column, self.dimension, self.height, self.width = row, column, 1, 1, 1

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        top, left = 8 * self.row, 8 * self.column
        bright = images[:, :, top : top + 8, left : left + 8].mean((1, 2, 3))[:, None]
        return bright[:, :, None, None], bright


class Teller(Decoder):
    """Its first word is as likely as the corner is bright; the second does not depend on the photo."""

    def start(self, features: ImageFeatures) -> DecoderState:
        return DecoderState({}, {"bright": features.pooled[:, 0], "length": torch.zeros(len(features))})

    def step(self, token: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState, dict[str, Tensor]]:
        logits = torch.zeros(len(token), self.vocabulary)
        logits[:, 5] = torch.where(state.hypotheses["length"] == 0, 8 * state.hypotheses["bright"], logits[:, 5])
        return logits, DecoderState({}, {**state.hypotheses, "length": state.hypotheses["length"] + 1}), {}


@pytest.mark.parametrize("cell", [(0, 0), (7, 7), (2, 5)])
def test_occlusion_finds_the_patch_that_counts(cell: tuple[int, int]) -> None:
    tokenizer = train_tokenizer("word", CAPTIONS, min_count=1, max_length=10)
    decoder = Teller()
    decoder.vocabulary = tokenizer.size
    captioner = Captioner([TorchBackend(Checkpoint(CaptionModel(Corner(*cell), decoder), tokenizer))])
    maps = occlusion_maps(captioner, captioner.prepare(Image.new("RGB", (120, 90), "white")), [5, 6], [[0], [1]])
    assert maps.shape == (2, CELLS, CELLS)
    assert np.unravel_index(maps[0].argmax(), maps[0].shape) == cell
    away = np.abs(np.indices((CELLS, CELLS)) - np.array(cell)[:, None, None]).max(0) > 1
    assert maps[0][away].max() == 0
    assert maps[1].max() == pytest.approx(0, abs=1e-6)
    assert occlusion_maps(captioner, captioner.prepare(photo()), [], []).shape == (0, CELLS, CELLS)


def test_hiding_a_patch_greys_that_patch_alone() -> None:
    pixels = np.ones((3, 50, 50))
    hidden = hide(pixels, (6, 0))
    assert np.abs(hidden[:, 38:, :12]).max() == 0
    assert hidden[:, :37].min() == 1 and hidden[:, :, 13:].min() == 1
    assert hide(pixels, None) is pixels and pixels.min() == 1


# The picture


def test_a_caption_draws_itself() -> None:
    picture = Captioner([TorchBackend(checkpoint("soft"))]).caption(photo()).overlay()
    assert isinstance(picture, Image.Image) and picture.width == WIDTH


def test_the_picture_is_bright_where_the_attention_is() -> None:
    picture = np.asarray(draw(caption("dog")).convert("L"), int)
    tile = picture[-(92 + 72 + 18) - 173 : -(92 + 72 + 18), 72 : 72 + 343]  # the only word, four in a row
    assert tile[30, 260] > 230  # row 1, column 5 of seven
    assert tile[120, 60] < 120


@pytest.mark.parametrize(("words", "columns"), [(0, 5), (5, 5), (8, 4), (9, 5), (10, 5), (11, 6), (12, 6), (20, 5)])
def test_words_fill_their_rows(words: int, columns: int) -> None:
    assert columns_for(words) == columns


def test_more_words_need_more_rows() -> None:
    one, two = draw(caption(*"abcde")), draw(caption(*"abcdefghij"))
    assert one.width == two.width == WIDTH
    assert two.height - one.height > 150


@pytest.mark.parametrize(
    "odd",
    [
        caption(),
        caption("x" * 200),
        caption("größe", "мяч", "犬"),
        caption(*["word"] * 60, finished=False),
        caption("dog", photo=Image.new("RGB", (1, 640))),
        caption("dog", photo=Image.new("RGB", (640, 1))),
        caption("dog", photo=Image.new("L", (5, 5))),
        Caption("a dog", (Word("a", 0.0), Word("dog", 1.0)), -9.0, photo=Image.new("RGB", (50, 50))),
    ],
    ids=["empty", "long word", "other letters", "many words", "tall", "wide", "grey", "no maps"],
)
def test_odd_captions_and_photos_are_drawn_all_the_same(odd: Caption) -> None:
    assert odd.overlay().width == WIDTH
    assert "</html>" in Explanation(odd, "attention").page()


def test_a_caption_without_its_photo_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="keep_photos=True"):
        caption("dog", photo=None).overlay()
    with pytest.raises(ConfigError, match=r"sightline\.explain\.explain"):
        Explanation(caption("dog", photo=None), "attention").page()
