"""From an image to an encoder's pixels: crop, squash and augmentation; the options as JSON in a model folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.errors import CheckpointError, ConfigError
from sightline.io.preprocess import Preprocess


def smooth(width: int, height: int) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [np.sin(columns / 17) + np.cos(rows / 23), np.sin(rows / 11), np.cos(columns / 31)]
    return Image.fromarray(np.stack([(c / 4 + 0.5) * 255 for c in channels], -1).astype(np.uint8))


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (257, 341), (1024, 333), (60, 40)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_equals_resize_then_centre_crop(size: tuple[int, int], interpolation: str) -> None:
    image, preprocess = smooth(*size), Preprocess(interpolation=interpolation)
    scale = 256 / min(size)
    width, height = (round(side * scale) if side == min(size) else int(side * scale) for side in size)
    whole = image.resize((width, height), Image.Resampling[interpolation.upper()])
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    expected = np.asarray(whole.crop((left, top, left + 224, top + 224)), int)
    assert np.abs(np.asarray(preprocess.visible(image), int) - expected).max() <= 2


def test_squash_shows_the_whole_photo() -> None:
    image = smooth(300, 100)
    preprocess = Preprocess(size=64, fit="squash")
    assert preprocess.visible(image).tobytes() == image.resize((64, 64), Image.Resampling.BICUBIC).tobytes()


def test_visible_is_what_the_tensor_holds() -> None:
    image, preprocess = smooth(300, 200), Preprocess()
    pixels = preprocess(image)
    assert pixels.shape == (3, 224, 224) and pixels.dtype == torch.float32
    assert preprocess.unnormalise(pixels).tobytes() == preprocess.visible(image).tobytes()
    red = np.asarray(preprocess.visible(image))[5, 7, 0] / 255
    assert pixels[0, 5, 7].item() == pytest.approx((red - 0.485) / 0.229, abs=1e-5)


def test_extreme_strips_cost_nothing() -> None:
    for size in ((1, 100_000), (100_000, 1)):
        assert Preprocess()(Image.new("RGB", size, "red")).shape == (3, 224, 224)


def test_augmentation_follows_its_generator_alone() -> None:
    image, preprocess = smooth(300, 200), Preprocess(size=32, resize=36)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = [preprocess.augmented(image, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    assert torch.equal(torch.get_rng_state(), state)
    assert first[0].shape == (3, 32, 32) and torch.isfinite(first[0]).all()


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("size", [(1, 1), (300, 20), (20, 300), (64, 64)])
def test_augmentation_stays_near_the_photo(fit: str, size: tuple[int, int]) -> None:
    preprocess, generator = Preprocess(size=16, resize=16, fit=fit), torch.Generator().manual_seed(0)
    for _ in range(20):
        shown = np.asarray(preprocess.unnormalise(preprocess.augmented(Image.new("RGB", size, "red"), generator)))
        red, green, blue = shown[8, 8].astype(int)
        assert red > 150 and green < 60 and blue < 60


def test_preprocess_travels_as_json() -> None:
    import json

    preprocess = Preprocess(size=128, resize=160, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), fit="squash")
    assert Preprocess.from_json(json.loads(json.dumps(preprocess.to_json()))) == preprocess


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0),
        ("size", "224"),
        ("size", True),
        ("size", 10**9),
        ("resize", 100),
        ("resize", 2.5),
        ("mean", [0.5, 0.5]),
        ("mean", [0.5, 0.5, float("nan")]),
        ("std", [0.5, 0.5, 0]),
        ("std", None),
        ("fit", "stretch"),
        ("fit", ["crop"]),
        ("interpolation", "nearest\n"),
    ],
)
def test_tampered_preprocess_names_the_field(field: str, value: object) -> None:
    with pytest.raises(CheckpointError) as caught:
        Preprocess.from_json(Preprocess().to_json() | {field: value})
    assert f"preprocess.{field}" in str(caught.value) and "\n" not in str(caught.value)


def test_preprocess_fields_must_be_complete_and_known() -> None:
    values = Preprocess().to_json()
    with pytest.raises(CheckpointError, match=r"preprocess\.zoom is unknown"):
        Preprocess.from_json(values | {"zoom": 2})
    del values["std"]
    with pytest.raises(CheckpointError, match=r"preprocess\.std is missing"):
        Preprocess.from_json(values)
    with pytest.raises(CheckpointError, match="not a JSON object"):
        Preprocess.from_json([])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"preprocess\.fit"):
        Preprocess(fit="stretch")  # type: ignore[arg-type]
