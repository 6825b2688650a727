"""What every encoder promises, over the whole registry, on random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from encoder_cases import NATIVE, noise, outputs
from torch import Tensor, nn

from sightline.errors import ConfigError
from sightline.nn.checkpoint import CaptionModel
from sightline.nn.decoders import build_decoder
from sightline.nn.encoders import ENCODERS, Encoder, build_encoder, encoder_from_spec
from sightline.nn.encoders.base import fingerprint
from sightline.nn.encoders.timm_model import ALIASES
from sightline.nn.encoders.torchvision_cnn import NETWORKS
from sightline.nn.torchvision_import import torchvision

SMALL = {"patches": 32, "dinov2-vits14": 56}  # 96 pixels otherwise: quick, and still several cells
# A layer somewhere in the middle, and parameters before and after its first one.
MIDDLE = {
    "patches": ("blocks.1", "blocks.0.", "blocks.1."),
    "alexnet": ("8", "trunk.6.", "trunk.10."),
    "googlenet": ("inception4d", "inception4c.", "inception4e."),
    "vgg16": ("24", "trunk.21.", "trunk.26."),
    "vgg19": ("28", "trunk.25.", "trunk.30."),
    **dict.fromkeys(("resnet50", "resnet101", "resnet152"), ("layer4", "layer3.", "layer4.2.")),
    **dict.fromkeys(("densenet121", "densenet201"), ("denseblock4", "denseblock3.", "norm5.")),
    **dict.fromkeys(("clip-vit-b16", "clip-vit-b32", "dinov2-vits14"), ("blocks.10", "blocks.9.", "network.norm.")),
    **{f"efficientnet-lite{size}": ("blocks.6", "blocks.5.", "conv_head.") for size in range(3)},
    "tiny-vit-5m": ("stages.3", "stages.2.", "stages.3.blocks.1."),
}


@pytest.fixture(scope="module", params=ENCODERS)
def network(request: pytest.FixtureRequest) -> Encoder:
    """One of the registered encoders, small; built once, as pytest takes all its tests together."""
    torch.manual_seed(0)
    return build_encoder(request.param, image_size=SMALL.get(request.param, 96))


@pytest.fixture
def encoder(network: Encoder) -> Iterator[Encoder]:
    """The same as new: nothing frozen, no gradients, in eval mode."""
    network.requires_grad_(True).trained = True
    yield network.eval()
    network.zero_grad()


# Grids


def test_every_registered_encoder_has_its_promised_grid_here() -> None:
    assert set(NATIVE) == set(MIDDLE) == set(ENCODERS) == {"patches", *NETWORKS, *ALIASES}


@pytest.mark.parametrize("name", ENCODERS)
def test_the_grid_at_the_networks_own_size_is_the_promised_one(name: str) -> None:
    with torch.device("meta"):  # shapes alone, nothing is computed
        encoder = build_encoder(name)
    assert (encoder.dimension, encoder.height, encoder.width, encoder.preprocess.size) == NATIVE[name]


@pytest.mark.parametrize("name", ["resnet50", "resnet101", "resnet152", "densenet121", "densenet201"])
def test_deep_networks_give_14x14_cells_at_448_pixels(name: str) -> None:
    with torch.device("meta"):
        encoder = build_encoder(name, image_size=448)
    assert (encoder.height, encoder.width) == (14, 14)


def test_features_have_the_measured_shape(encoder: Encoder) -> None:
    with torch.no_grad():
        features = encoder(noise(encoder, 2))
    assert features.grid.shape == (2, encoder.height * encoder.width, encoder.dimension)
    assert features.pooled.shape == (2, encoder.dimension)
    assert (features.height, features.width) == (encoder.height, encoder.width)
    assert features.grid.isfinite().all()


def test_different_cells_have_different_vectors(encoder: Encoder) -> None:
    """A pooling that repeats vectors, or a network cut after its global pooling, would give neighbours alike."""
    picture = noise(encoder) * 0.2
    picture[..., encoder.preprocess.size // 2 :] += 2.0  # the right half is another one
    grid, _ = outputs(encoder, picture)
    maps = grid[0].unflatten(0, (encoder.height, encoder.width))
    scale = maps.norm(dim=-1).mean()
    for first, second in ((maps[:, :-1], maps[:, 1:]), (maps[:-1], maps[1:])):
        apart = (first - second).norm(dim=-1) / scale
        assert (apart > 1e-3).all(), f"{(apart <= 1e-3).sum()} of {apart.numel()} neighbours are alike"


SWIN = {"embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}  # its maps have their channels last
LOCAL = ["patches", "alexnet", "googlenet", "vgg16", "vgg19", "densenet121", "clip-vit-b32", "dinov2-vits14"]


@pytest.mark.parametrize("network", LOCAL, indirect=True)
def test_cells_lie_row_by_row_from_the_upper_left(encoder: Encoder) -> None:
    """Where the picture is changed, the vectors change most, in networks that are not too deep to tell untrained."""
    check_corners(encoder)


def check_corners(encoder: Encoder) -> None:
    size = encoder.preprocess.size
    plain = noise(encoder)
    before, _ = outputs(encoder, plain)
    corners = {(0, 0): 0, (0, 1): encoder.width - 1, (1, 0): encoder.width * (encoder.height - 1), (1, 1): -1}
    for (down, right), cell in corners.items():
        changed = plain.clone()
        part = size // max(4, encoder.height)
        rows, columns = (slice(-part, None) if side else slice(part) for side in (down, right))
        changed[..., rows, columns] = 3.0
        after, _ = outputs(encoder, changed)
        change = (after - before)[0].norm(dim=-1)
        elsewhere = torch.tensor([change[other] for other in corners.values() if other != cell])
        assert change[cell] > elsewhere.max()


def test_the_one_vector_depends_on_the_photo(encoder: Encoder) -> None:
    _, pooled = outputs(encoder, noise(encoder, 2))
    assert (pooled[0] - pooled[1]).norm() > 1e-5 * pooled.norm(dim=-1).mean()


def test_a_photo_is_seen_alike_alone_and_in_company(encoder: Encoder) -> None:
    images = noise(encoder, 3)
    grid, pooled = outputs(encoder, images)
    for index in range(3):
        alone, alone_pooled = outputs(encoder, images[index : index + 1])
        assert (alone[0] - grid[index]).norm() < 1e-2 * grid[index].norm()  # untrained ResNets magnify rounding
        assert (alone_pooled[0] - pooled[index]).norm() < 1e-2 * pooled[index].norm()


def test_pooling_to_a_smaller_grid_averages_the_cells() -> None:
    encoder, whole = build_encoder("googlenet", image_size=64, grid=2), build_encoder("googlenet", image_size=64)
    whole.load_state_dict(encoder.state_dict())
    assert (encoder.height, encoder.width) == (2, 2)
    assert whole.height > 2
    images = noise(encoder)
    grid, pooled = outputs(encoder, images)
    fine, fine_pooled = outputs(whole, images)
    maps = fine.transpose(1, 2).unflatten(2, (whole.height, whole.width))
    expected = nn.functional.adaptive_avg_pool2d(maps, 2).flatten(2).transpose(1, 2)
    assert torch.allclose(grid, expected, atol=1e-5)
    assert torch.equal(pooled, fine_pooled)


@pytest.mark.parametrize(
    ("name", "grid"), [("alexnet", 15), ("resnet50", 14), ("dinov2-vits14", 20), ("tiny-vit-5m", 14)]
)
def test_a_grid_larger_than_the_networks_own_is_refused_with_the_size_that_gives_it(name: str, grid: int) -> None:
    with torch.device("meta"), pytest.raises(ConfigError) as caught:
        build_encoder(name, grid=grid)
    message = str(caught.value)
    side = NATIVE[name][1]
    assert f"encoder.grid={grid}: {name} gives {side}x{side} cells at {NATIVE[name][3]} pixels" in message
    size = int(message.split("set encoder.image_size=")[1].split(" ")[0])
    with torch.device("meta"):
        assert build_encoder(name, grid=grid, image_size=size).height == grid


# Frozen and trained


def norms(encoder: Encoder) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in encoder.named_buffers() if "running" in name or "tracked" in name}


def test_frozen_is_eval_mode_without_gradient_whatever_the_model_does(encoder: Encoder) -> None:
    encoder.set_trainable("frozen")
    model = CaptionModel(encoder, build_decoder("lstm", encoder.dimension, 5, 4, width=4, hidden=4))
    images = noise(encoder, 2)
    expected, expected_pooled = outputs(encoder.eval(), images)
    before = norms(encoder)
    model.train()
    assert model.decoder.training
    assert not any(module.training for module in encoder.modules())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    features = model.features(images)
    assert not features.grid.requires_grad
    assert torch.equal(features.grid, expected)
    assert torch.equal(features.pooled, expected_pooled)
    model(images, torch.tensor([[1, 3], [1, 4]])).logits.sum().backward()
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert all(torch.equal(value, before[name]) for name, value in norms(encoder).items())


def test_trained_through_and_through_all_weights_get_a_gradient(encoder: Encoder) -> None:
    encoder.set_trainable("all")
    encoder.train()
    before = norms(encoder)
    features = encoder(noise(encoder, 2))
    (features.grid.square().mean() + features.pooled.square().mean()).backward()
    untouched = [name for name, parameter in encoder.named_parameters() if parameter.grad is None]
    # Only what no feature depends on, and that does not ask for a gradient either: processes would wait for it.
    assert untouched == (["network.head.norm.weight", "network.head.norm.bias"] if "tiny" in encoder.name else [])
    assert [name for name, p in encoder.named_parameters() if not p.requires_grad] == untouched
    first, *_, last = (p for p in encoder.parameters() if p.requires_grad)
    assert first.grad.abs().sum() > 0
    assert last.grad.abs().sum() > 0
    assert all(torch.equal(value, before[name]) for name, value in norms(encoder).items()), "statistics are kept"


def test_fine_tuning_from_a_layer_leaves_all_before_it(encoder: Encoder) -> None:
    layer, before, after = MIDDLE[encoder.name]
    encoder.set_trainable(layer)
    trained = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    frozen = [name for name, parameter in encoder.named_parameters() if not parameter.requires_grad]
    assert f".{layer}." in f".{trained[0]}"
    names = [name for name, _ in encoder.named_parameters() if "network.head." not in name]
    assert names == [name for name in frozen if name in names] + trained
    assert any(before in name for name in frozen)
    assert any(after in name for name in trained)
    assert encoder.trained
    encoder.train()
    encoder(noise(encoder)).grid.sum().backward()
    assert all(p.grad is not None for name, p in encoder.named_parameters() if name in trained)
    assert all(p.grad is None for name, p in encoder.named_parameters() if name in frozen)


def test_an_unknown_layer_is_refused_with_the_layers_there_are(encoder: Encoder) -> None:
    with pytest.raises(ConfigError) as caught:
        encoder.set_trainable("layer99")
    message = str(caught.value)
    assert f"encoder.train is 'layer99': {encoder.name} has no such layer; it has " in message
    listed = message.split("; it has ")[1].split(", ")
    assert len(listed) > 2
    names = [f".{name}." for name, _ in encoder.named_parameters()]
    assert all(any(f".{layer}." in name for name in names) for layer in listed), "each can be typed"


# There and back


def test_the_spec_rebuilds_the_same_network_without_its_weights(encoder: Encoder) -> None:
    spec = json.loads(json.dumps(encoder.spec()))
    again = encoder_from_spec(spec).eval()
    again.load_state_dict(encoder.state_dict())
    images = noise(encoder, 2)
    for one, other in zip(outputs(again, images), outputs(encoder, images)):
        assert torch.equal(one, other)
    assert again.spec() == encoder.spec()
    assert again.preprocess == encoder.preprocess
    assert (again.dimension, again.height, again.width) == (encoder.dimension, encoder.height, encoder.width)


def test_a_fingerprint_follows_the_weights(encoder: Encoder) -> None:
    before = fingerprint(encoder)
    assert fingerprint(encoder) == before
    last = list(encoder.parameters())[-1]
    with torch.no_grad():
        last.view(-1)[0] += 1
    assert fingerprint(encoder) != before
    with torch.no_grad():
        last.view(-1)[0] -= 1


# Names and options


def test_an_unknown_encoder_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown encoder 'dinov2-vits41' \(did you mean 'dinov2-vits14'\?\)"):
        build_encoder("dinov2-vits41")
    with pytest.raises(ConfigError, match=r"'convnext_atoo' \(did you mean 'convnext_atto'\?\)"):
        build_encoder("convnext_atoo")


def test_any_timm_network_serves_by_its_name() -> None:
    torch.manual_seed(0)
    for name, size in (("convnext_atto", 64), ("mobilenetv3_small_050", 64), ("test_vit", 160), ("test_vit", 96)):
        encoder = build_encoder(name, image_size=size)
        grid, pooled = outputs(encoder, noise(encoder))
        assert grid.shape == (1, encoder.height * encoder.width, encoder.dimension)
        assert pooled.shape == (1, encoder.dimension)
        assert encoder.height == size // (32 if name != "test_vit" else 16)


@pytest.mark.parametrize(("size", "side"), [(None, 7), (448, 14)])
def test_a_network_whose_maps_have_their_channels_last_is_turned(size: int | None, side: int) -> None:
    encoder = build_encoder("swin_tiny_patch4_window7_224", image_size=size, options=SWIN)
    assert (encoder.dimension, encoder.height, encoder.width) == (64, side, side)
    check_corners(encoder)


def test_weights_that_cannot_be_downloaded_ask_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*args: Any, pretrained: bool = False, weights: Any = None, **options: Any) -> None:
        raise LocalEntryNotFoundError("offline") if pretrained else OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", unreachable)
    monkeypatch.setattr(torchvision.models, "alexnet", unreachable)
    for name in ("tiny-vit-5m", "alexnet"):
        with pytest.raises(ConfigError, match=r"could not be downloaded .* --set encoder\.weights=FILE\.safetensors"):
            build_encoder(name, weights="library")


@pytest.mark.parametrize("name", ["mixer_s32_224", "crossvit_tiny_240", "levit_128s"])
def test_a_network_without_a_grid_is_refused(name: str) -> None:
    with torch.device("meta"), pytest.raises(ConfigError, match=f"timm's '{name}' gives no grid of features"):
        build_encoder(name)


@pytest.mark.parametrize(("name", "layer"), [("resnet152", "layer3"), ("densenet121", "transition3.relu")])
def test_a_deep_network_cut_after_an_earlier_layer_gives_14x14_cells_at_224_pixels(name: str, layer: str) -> None:
    torch.manual_seed(0)
    whole = build_encoder(name)
    cut = build_encoder(name, options={"layer": layer})
    assert (cut.dimension, cut.height, cut.width, cut.preprocess.size) == (1024, 14, 14, 224)
    assert cut.spec()["options"] == {"layer": layer}
    cut.load_state_dict({key: whole.state_dict()[key] for key in cut.state_dict()})
    seen: list[torch.Tensor] = []
    whole.trunk.get_submodule(layer).register_forward_hook(lambda *arguments: seen.append(arguments[-1]))
    images = noise(whole)
    outputs(whole, images)
    grid, _ = outputs(cut, images)
    assert torch.allclose(grid, seen[0].flatten(2).transpose(1, 2), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layer", "fault"),
    [
        ("resnet50", "layer9", "resnet50 has no layer 'layer9' there; it has conv1, bn1"),
        ("densenet121", "transition3.nothing", "it has norm, relu, conv, pool"),
        ("vgg19", "3", "is for ResNets and DenseNets, the encoder is 'vgg19'"),
    ],
)
def test_a_layer_to_cut_after_that_is_not_there_is_refused(name: str, layer: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        build_encoder(name, options={"layer": layer})


def test_an_option_the_architecture_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"encoder 'convnext_atto' cannot be built with .*'wings': 2"):
        build_encoder("convnext_atto", options={"wings": 2})
    with pytest.raises(ConfigError, match=r"alexnet has no \['wings'\]; it knows \['layer', 'stride_in_1x1'\]"):
        build_encoder("alexnet", options={"wings": 2})
    with pytest.raises(ConfigError, match="stride_in_1x1 is for ResNets, the encoder is 'alexnet'"):
        build_encoder("alexnet", options={"stride_in_1x1": True})


def test_an_encoder_that_does_not_take_what_a_recipe_gives_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class TinyConv(Encoder):
        def __init__(self, name: str, image_size: int = 32):
            raise AssertionError

    monkeypatch.setitem(ENCODERS, "tiny-conv", TinyConv)
    with pytest.raises(ConfigError, match=r"'tiny-conv' cannot be built: TinyConv got an unexpected .* 'weights'; CON"):
        build_encoder("tiny-conv", weights="random", image_size=32)


def test_the_preprocessing_belongs_to_the_weights() -> None:
    with torch.device("meta"):
        assert build_encoder("googlenet").preprocess.mean == (0.5, 0.5, 0.5)
        assert build_encoder("vgg19").preprocess.mean == (0.485, 0.456, 0.406)
        assert build_encoder("vgg19").preprocess.resize == 256
        clip = build_encoder("clip-vit-b32", fit="squash").preprocess
    assert clip.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert clip.fit == "squash"
