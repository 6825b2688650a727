"""Encoders with weights from a file, loaded strictly or refused; the real weights where they lie at hand."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_cases import NATIVE, noise, outputs
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sightline.data import load_dataset
from sightline.errors import CheckpointError, ConfigError
from sightline.io.images import open_image
from sightline.nn.encoders import Encoder, build_encoder, encoder_from_spec
from sightline.nn.encoders.base import KNOWN_CHANGES, Unfilled, WeightsFile
from sightline.nn.torchvision_import import torchvision

# Weights from a file


def describe(path: Path, **changes: Any) -> Path:
    """The JSON beside a weights file."""
    about = {"arch": path.stem, "input_size": [3, 224, 224], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], **changes}
    path.with_suffix(".json").write_text(json.dumps(about))
    return path


@cache
def alexnet_features() -> nn.Sequential:
    with torch.device("meta"):
        model = torchvision.models.alexnet(weights=None).eval()
    torch.manual_seed(3)
    features = model.features.to_empty(device="cpu")  # without the classifier, 23 times as large
    for parameter in features.parameters():
        nn.init.normal_(parameter, std=0.05)
    return features


def alexnet_file(folder: Path) -> Path:
    """The convolutions alone, as a file described so."""
    path = folder / "alexnet.safetensors"
    save_file(alexnet_features().state_dict(), path)
    return describe(path, submodule="features")


def test_a_file_of_one_part_loads_into_that_part(tmp_path: Path) -> None:
    encoder = build_encoder("alexnet", weights=str(alexnet_file(tmp_path)), image_size=96)
    images = noise(encoder)
    with torch.no_grad():
        expected = alexnet_features()[:-1](images).flatten(2).transpose(1, 2)
    assert torch.allclose(outputs(encoder, images)[0], expected, rtol=1e-4, atol=1e-4 * float(expected.max()))
    assert encoder.preprocess.mean == (0.1, 0.2, 0.3)
    assert encoder.preprocess.std == (0.4, 0.5, 0.6)


@pytest.mark.parametrize("auxiliary", [True, False])
def test_a_file_in_the_librarys_layout_needs_no_description(tmp_path: Path, auxiliary: bool) -> None:
    """GoogLeNet's own file has the auxiliary classifiers of its training, others have not."""
    torch.manual_seed(3)
    model = torchvision.models.googlenet(weights=None, init_weights=False, aux_logits=auxiliary).eval()
    path = tmp_path / "googlenet.safetensors"
    save_file(model.state_dict(), path)
    encoder = build_encoder("googlenet", weights=str(path), image_size=64)
    seen: list[Tensor] = []
    model.inception4e.register_forward_hook(lambda module, inputs, output: seen.append(output))
    images = noise(encoder)
    with torch.no_grad():
        model(images)
    assert torch.allclose(outputs(encoder, images)[0], seen[0].flatten(2).transpose(1, 2), atol=1e-5)
    assert encoder.preprocess.mean == (0.5, 0.5, 0.5)


def test_a_half_precision_file_is_computed_with_in_full(tmp_path: Path) -> None:
    path = alexnet_file(tmp_path)
    save_file({name: value.half() for name, value in load_file(path).items()}, path)
    encoder = build_encoder("alexnet", weights=str(path), image_size=64)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_a_file_with_a_missing_an_extra_or_a_misshapen_tensor_is_refused(tmp_path: Path) -> None:
    path = alexnet_file(tmp_path)
    whole = load_file(path)
    name = "3.weight"
    for tensors, fault in (
        ({key: value for key, value in whole.items() if key != name}, f"1 tensors missing ({name})"),
        (whole | {"surprise": torch.zeros(1)}, "1 tensors too many (surprise)"),
        (whole | {name: torch.zeros(3)}, f"{name} is (3,), expected (192, 64, 5, 5)"),
    ):
        save_file(tensors, path)
        with torch.device("meta"), pytest.raises(CheckpointError) as caught:
            build_encoder("alexnet", weights=str(path))
        assert fault in str(caught.value)
        assert str(path) in str(caught.value)


def test_a_file_that_is_no_weights_file_is_refused(tmp_path: Path) -> None:
    path = alexnet_file(tmp_path)
    path.write_bytes(path.read_bytes()[:1000])
    with (
        torch.device("meta"),
        pytest.raises(CheckpointError, match=r"alexnet\.safetensors is not a readable safetensors file"),
    ):
        build_encoder("alexnet", weights=str(path))
    (tmp_path / "weights.pth").write_bytes(b"x")
    for wrong, what in (("none.safetensors", "does not exist; give"), ("weights.pth", "is not a"), ("", "is not a")):
        with pytest.raises(ConfigError, match=what):
            build_encoder("alexnet", weights=str(tmp_path / wrong))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"arch": "vgg19"}, "alexnet.safetensors holds weights of 'vgg19', the encoder is 'alexnet'"),
        ({"submodule": "wings"}, "holds weights of a part 'wings' that alexnet has not"),
        ({"mean": [0.5]}, "preprocess.mean"),
        ({"mean": "grey"}, "does not describe weights"),
        ({"input_size": None}, "does not describe weights"),
        ({"after_build": "__import__('pathlib').Path('ran').touch()"}, "a change that is not known and is never run"),
        ({"after_build": ["x"]}, "does not describe weights"),
    ],
)
def test_a_description_that_does_not_fit_is_refused_and_nothing_in_it_is_run(
    changes: dict[str, Any], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = describe(alexnet_file(tmp_path), **{"submodule": "features", **changes})
    with pytest.raises(ConfigError) as caught:
        build_encoder("alexnet", weights=str(path))
    assert fault in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"arch": "alexnet"}'])
def test_a_damaged_description_is_refused(text: str, tmp_path: Path) -> None:
    path = alexnet_file(tmp_path)
    path.with_suffix(".json").write_text(text)
    with pytest.raises(ConfigError, match=r"alexnet\.json does not describe weights"):
        WeightsFile.read(path)


def test_the_original_resnets_stride_sits_in_their_first_convolution(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None)
    path = tmp_path / "resnet50.safetensors"
    save_file(model.state_dict(), path)
    plain = build_encoder("resnet50", weights=str(path), image_size=64)
    describe(path, after_build=next(iter(KNOWN_CHANGES)))
    original = build_encoder("resnet50", weights=str(path), image_size=64)
    for stage in ("layer2", "layer3", "layer4"):
        for encoder, strides in ((plain, [(1, 1), (2, 2)]), (original, [(2, 2), (1, 1)])):
            block = encoder.trunk.get_submodule(stage)[0]
            assert [block.conv1.stride, block.conv2.stride] == strides
    assert original.height == plain.height
    again = encoder_from_spec(original.spec()).eval()  # it travels with the model, the file is not needed again
    again.load_state_dict(original.state_dict())
    images = noise(original)
    assert torch.equal(outputs(again, images)[0], outputs(original, images)[0])
    assert not torch.allclose(outputs(plain, images)[0], outputs(original, images)[0])


def test_a_change_timm_cannot_carry_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "resnet18.safetensors"
    save_file({"x": torch.zeros(1)}, path)
    for changes, fault in (
        ({"after_build": next(iter(KNOWN_CHANGES))}, "needs stride_in_1x1"),
        ({"submodule": "features"}, "needs submodule 'features'"),
    ):
        describe(path, **changes)
        with pytest.raises(ConfigError, match=fault):
            build_encoder("resnet18", weights=str(path))


def timm_file(name: str, path: Path, **options: Any) -> dict[str, Tensor]:
    import timm

    torch.manual_seed(5)
    tensors = timm.create_model(name, pretrained=False, **options).state_dict()
    save_file(tensors, path)
    return tensors


def test_clip_loads_from_a_file_and_gives_49_patches_and_a_class_token_of_768_numbers(tmp_path: Path) -> None:
    import timm

    path = tmp_path / "clip.safetensors"
    tensors = timm_file("vit_base_patch32_clip_224.openai", path)
    encoder = build_encoder("clip-vit-b32", weights=str(path))
    assert (encoder.dimension, encoder.height, encoder.width) == (768, 7, 7)
    model = timm.create_model("vit_base_patch32_clip_224.openai", pretrained=False).eval()
    model.load_state_dict(tensors)
    images = noise(encoder)
    grid, pooled = outputs(encoder, images)
    with torch.no_grad():
        expected = model.forward_features(images)  # (1, 50, 768), the class token first
    assert expected.shape == (1, 50, 768)
    assert torch.allclose(grid, expected[:, 1:], atol=1e-5)
    assert torch.allclose(pooled, expected[:, 0], atol=1e-5)


def test_a_timm_file_loads_with_or_without_its_classifier(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    grids = []
    for options in ({}, {"num_classes": 0}):
        tensors = timm_file("test_vit", path, **options)
        assert ("head.weight" in tensors) == (not options)
        encoder = build_encoder("test_vit", weights=str(path))
        assert torch.equal(encoder.network.patch_embed.proj.weight, tensors["patch_embed.proj.weight"])
        grids.append(outputs(encoder, noise(encoder))[0])
    assert grids[0].shape == grids[1].shape
    del tensors["blocks.0.attn.qkv.weight"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"1 tensors missing \(blocks\.0\.attn\.qkv\.weight\)"):
        build_encoder("test_vit", weights=str(path))


@pytest.mark.parametrize("name", ["test_vit", "test_vit2", "test_vit3"])
def test_positions_of_another_image_size_are_resampled(name: str, tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    tensors = timm_file(name, path)
    native = build_encoder(name, weights=str(path))
    assert torch.equal(native.network.pos_embed, tensors["pos_embed"])
    larger = build_encoder(name, weights=str(path), image_size=native.preprocess.size + 64)
    assert larger.height == native.height + 4
    before, after = tensors["pos_embed"], larger.network.pos_embed
    prefix = before.shape[1] - native.height**2  # with class and register tokens, or without
    assert after.shape == (1, prefix + larger.height**2, before.shape[2])
    assert torch.equal(after[:, :prefix], before[:, :prefix])
    maps = before[:, prefix:].transpose(1, 2).unflatten(2, (native.height, native.width))
    expected = nn.functional.interpolate(maps, larger.height, mode="bicubic", antialias=True)
    assert torch.allclose(after[:, prefix:], expected.flatten(2).transpose(1, 2), atol=1e-5)
    outputs(larger, noise(larger))


# The real weights: NAME.safetensors with NAME.json beside it, in the folder $SIGHTLINE_WEIGHTS names

REAL = {
    "alexnet": "alexnet",
    "googlenet": "googlenet",
    "vgg16": "vgg16",
    "vgg19": "vgg19",
    "resnet50": "resnet50",
    "resnet152": "resnet152",
    "densenet121": "densenet121",
    "clip-vit-b16": "clip_vit_b16",
    "dinov2-vits14": "dinov2_vits14",
    "efficientnet-lite0": "efficientnet_lite0",
    "efficientnet-lite1": "efficientnet_lite1",
    "efficientnet-lite2": "efficientnet_lite2",
    "tiny-vit-5m": "tiny_vit_5m",
}


@pytest.fixture(scope="module")
def real_photos(real_flickr8k: Path) -> list[Image.Image]:
    return [open_image(example.image) for example in load_dataset(real_flickr8k).examples("test")[:4]]


def real_encoder(name: str) -> Encoder:
    folder = os.environ.get("SIGHTLINE_WEIGHTS")
    if not folder:
        pytest.skip("real weights not found: set SIGHTLINE_WEIGHTS to the folder that holds NAME.safetensors")
    return build_encoder(name, weights=str(Path(folder, f"{REAL[name]}.safetensors"))).eval()


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_real_weights_load_strictly_and_tell_photos_apart(name: str, real_photos: list[Image.Image]) -> None:
    encoder = real_encoder(name)
    assert (encoder.dimension, encoder.height, encoder.width, encoder.preprocess.size) == NATIVE[name]
    images = torch.stack([encoder.preprocess(photo) for photo in real_photos])
    grid, pooled = outputs(encoder, images)
    assert grid.isfinite().all()
    alike = nn.functional.cosine_similarity(pooled[:, None], pooled[None], dim=-1)
    assert alike[~torch.eye(4, dtype=torch.bool)].max() < 0.95
    neighbours = nn.functional.cosine_similarity(grid[:, :-1], grid[:, 1:], dim=-1)
    assert neighbours.mean() < 0.95


@pytest.mark.real
def test_real_dinov2_sees_the_same_in_a_mirrored_photo(real_photos: list[Image.Image]) -> None:
    """What a random network does not promise: a photo is nearer to its own mirror image than to other photos."""
    encoder = real_encoder("dinov2-vits14")
    images = torch.stack([encoder.preprocess(photo) for photo in real_photos])
    _, pooled = outputs(encoder, images)
    _, mirrored = outputs(encoder, images.flip(-1))
    alike = nn.functional.cosine_similarity(pooled[:, None], mirrored[None], dim=-1)
    assert alike.argmax(1).tolist() == [0, 1, 2, 3]
    assert alike.diagonal().min() > 0.8
    assert alike[~torch.eye(4, dtype=torch.bool)].max() < 0.6


def test_a_network_built_to_be_loaded_never_waits_for_a_draw() -> None:
    """torch repeats a truncated normal until every number is in range; memory as it lies may never be."""
    with Unfilled():
        weights = torch.full((64,), 1e9)
        torch.nn.init.trunc_normal_(weights, std=0.01)
    assert weights.abs().max() <= 2
