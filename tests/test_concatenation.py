"""Several encoders side by side, as one encoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_checkpoints import LENGTH, OPTIONS, tokenizer

from sightline.cli import run
from sightline.data import Example
from sightline.errors import CheckpointError, ConfigError
from sightline.nn.checkpoint import CaptionModel, Checkpoint, load_checkpoint, save_checkpoint
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import Encoder, build_encoder, encoder_from_spec
from sightline.onnx.export import encoder_session
from sightline.recipes.config import load_recipe, parse_recipe
from sightline.training.feature_cache import FeatureCache
from sightline.training.setup import encoder_options, start_from
from sightline.training.trainer import train

NAMES = ("efficientnet-lite0", "tiny-vit-5m")  # of different mean, standard deviation and depth
BOTH = "+".join(NAMES)


@pytest.fixture(scope="module")
def both() -> Encoder:
    torch.manual_seed(0)
    return build_encoder(BOTH, image_size=96, grid=2, fit="squash").eval()


@torch.no_grad()
def test_each_cell_has_the_features_of_both_each_with_its_own_normalisation(both: Encoder) -> None:
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 120, 3), np.uint8))
    features = both(both.preprocess(photo)[None])
    alone = [part(part.preprocess(photo)[None]) for part in both.parts]  # type: ignore[operator, union-attr]
    assert features.grid.shape == (1, 4, 1280 + 320) and (both.height, both.width, both.dimension) == (2, 2, 1600)
    assert torch.allclose(features.grid, torch.cat([own.grid for own in alone], 2), atol=1e-4)
    assert torch.allclose(features.pooled, torch.cat([own.pooled for own in alone], 1), atol=1e-4)
    assert len({part.preprocess.mean for part in both.parts}) == 2  # type: ignore[union-attr]


@torch.no_grad()
def test_its_spec_builds_it_again_and_onnxruntime_runs_it(both: Encoder) -> None:
    pixels = torch.randn(2, 3, 96, 96)
    expected = both(pixels)
    spec = json.loads(json.dumps(both.spec()))
    again = encoder_from_spec(spec)
    again.load_state_dict(both.state_dict())
    assert again.spec() == spec
    assert torch.equal(again.eval()(pixels).grid, expected.grid)
    grid, pooled = encoder_session(both, "float32")(pixels)
    assert torch.allclose(torch.as_tensor(grid), expected.grid, atol=1e-3)
    assert torch.allclose(torch.as_tensor(pooled), expected.pooled, atol=1e-3)


@torch.no_grad()
def test_features_cached_in_int8_are_near_those_of_each_alone(both: Encoder, tmp_path: Path) -> None:
    """Only matrix products are computed in int8: TinyViT has them, EfficientNet has none and stays exact."""
    pytest.importorskip("onnxscript")
    photos = [tmp_path / f"{number}.png" for number in range(3)]
    for seed, path in enumerate(photos):
        Image.fromarray(np.random.default_rng(seed).integers(0, 255, (80, 120, 3), np.uint8)).save(path)
    examples = [Example(path, ("a",), path.name) for path in photos]
    cache = FeatureCache(both, examples, tmp_path / "cache", precision="int8").fill(batch_size=2)
    features = cache.features(range(3))
    sizes = [part.dimension for part in both.parts]  # type: ignore[union-attr]
    bounds = [(0, 1e-3), (1e-3, 0.1)]  # half precision alone, and int8
    for part, grid, pooled, (low, high) in zip(
        both.parts, features.grid.split(sizes, 2), features.pooled.split(sizes, 1), bounds
    ):
        alone = part(torch.stack([part.preprocess(Image.open(path)) for path in photos]))  # type: ignore[operator, union-attr]
        for found, exact in ((grid, alone.grid), (pooled, alone.pooled)):
            assert low < float((found - exact).norm() / exact.norm()) < high


def test_each_has_its_own_weights(both: Encoder, tmp_path: Path) -> None:
    files = []
    for name, part in zip(NAMES, both.parts):
        files.append(tmp_path / f"{name}.safetensors")
        tensors = part.get_submodule("network").state_dict()
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, files[-1])
    loaded = build_encoder(BOTH, weights="+".join(map(str, files)), image_size=96, grid=2, fit="squash").eval()
    pixels = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert torch.equal(loaded(pixels).grid, both(pixels).grid)
    with pytest.raises(ConfigError, match=rf"encoder.weights has 1 of 2: name one for each of {NAMES[0]}\+{NAMES[1]}"):
        build_encoder(BOTH, weights=str(files[0]))


def test_grids_that_differ_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"encoder.grid differs \(alexnet 5, tiny-vit-5m 3\): .* encoder.grid=3"):
        build_encoder("alexnet+tiny-vit-5m", image_size=96)


def test_a_model_folder_has_no_other_files_read_for_any_of_them(both: Encoder, tmp_path: Path) -> None:
    words = tokenizer()
    sizes = {"features": both.dimension, "vocabulary": words.size, "max_length": LENGTH}
    model = CaptionModel(both, build_decoder("lstm", **sizes, **OPTIONS["lstm"]))
    save_checkpoint(tmp_path, Checkpoint(model, words, {"beam": 2}, {}, 'title = "two"\n'))
    assert load_checkpoint(tmp_path).model.encoder.spec() == both.spec()
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder"]["options"]["parts"][1]["options"]["checkpoint_path"] = "/tmp/other.pth"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"encoder.options.parts.1.options.checkpoint_path is not allowed here"):
        load_checkpoint(tmp_path)


def test_recipes_check_knows_each_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "check", "clip-coco", "--set", f"encoder.name={BOTH}"]) == 0
    assert run(["recipes", "check", "clip-coco", "--set", "encoder.name=tiny-vit-5m+dinov2-vits15"]) == 1
    assert "unknown encoder 'dinov2-vits15' (did you mean 'dinov2-vits14'?)" in capsys.readouterr().err


def test_a_run_that_adds_an_encoder_begins_with_the_captions_of_the_model_it_starts_from(tmp_path: Path) -> None:
    """First one encoder and then two, and a third beside these two."""
    words, pixels = tokenizer(), torch.randn(2, 3, 96, 96)
    tokens = torch.randint(4, 10, (2, 6))
    for before, now in ((NAMES[0], BOTH), (BOTH, f"{BOTH}+{NAMES[0]}")):
        torch.manual_seed(1)
        encoder = build_encoder(before, weights="random", image_size=96, grid=2).eval()
        sizes = {"features": encoder.dimension, "vocabulary": words.size, "max_length": LENGTH}
        model = CaptionModel(encoder, build_decoder("transformer", **sizes, **OPTIONS["transformer"])).eval()
        with torch.no_grad():
            expected = model(pixels, tokens).logits
        folder = tmp_path / before
        save_checkpoint(folder, Checkpoint(model, words, {"beam": 2}, {}, 'title = "one"\n'))
        larger = build_encoder(now, weights="random", image_size=96, grid=2)
        last = {name: tensor.clone() for name, tensor in larger.parts[-1].state_dict().items()}
        sizes["features"] = larger.dimension
        wider = CaptionModel(larger, build_decoder("transformer", **sizes, **OPTIONS["transformer"])).eval()
        start_from(wider, str(folder))
        with torch.no_grad():
            assert torch.allclose(wider(pixels, tokens).logits, expected, atol=1e-4)
        for name, tensor in larger.parts[-1].state_dict().items():
            assert torch.equal(tensor, last[name]), name


def test_added_encoders_keep_their_own_weights_where_a_run_starts_from_a_model() -> None:
    recipe = load_recipe("clip-coco", [f"encoder.name={BOTH}", "training.init=default"])
    assert encoder_options(recipe)["weights"] == "library"
    assert encoder_options(load_recipe("clip-coco", ["training.init=default"]))["weights"] == "random"


def test_such_a_run_is_scored_at_its_start(tiny_flickr8k_kept: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    values = {
        "encoder": {"name": NAMES[0], "weights": "random", "image_size": 64, "grid": 2},
        "decoder": {"name": "transformer", "width": 16, "heads": 2, "blocks": 1},
        "training": {"epochs": 1, "batch_size": 4},
    }
    train(parse_recipe(values), tiny_flickr8k_kept, tmp_path / "one")
    wider = parse_recipe(values, [f"encoder.name={BOTH}", f"training.init={tmp_path / 'one'}"])
    train(wider, tiny_flickr8k_kept, tmp_path / "both")
    metrics = load_checkpoint(tmp_path / "both").metrics
    assert metrics["start"]["bleu_1"] == pytest.approx(load_checkpoint(tmp_path / "one").metrics["val"]["bleu_1"])
