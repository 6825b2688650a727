"""The convolutional networks of Show, Attend and Tell and its successors, cut before their spatial grid is pooled away.

| network | cut after | grid at its size | note |
|---|---|---|---|
| AlexNet | last ReLU before the last pooling | 14x14x256 at 240 px (13x13 at 224) | the paper's 2015 baselines |
| GoogLeNet | inception 4e | 14x14x832 at 224 px | 5b would give 7x7 |
| VGG-16/19 | last ReLU before the last pooling (conv5_3 / conv5_4) | 14x14x512 at 224 px | the paper's own |
| ResNet, DenseNet | last block | 7x7 at 224 px, 14x14 at 448 px | set ``image_size = 448`` for 14x14 |

``options.layer`` cuts a ResNet or DenseNet earlier: "layer3" (ResNet) and "transition3.relu" (DenseNet) have
14x14x1024 at 224 px, for a quarter of the work that 448 px take.

The pooled vector is the grid's mean: for ResNet-50 at 224 px the usual 2048 numbers before its classifier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from sightline.errors import ConfigError
from sightline.io.preprocess import Preprocess
from sightline.nn.encoders.base import Encoder, WeightsFile, check_grid, load_strictly, pool_to

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # GoogLeNet's weights were trained so; torchvision converts inside


@dataclass(frozen=True)
class Network:
    trunk: Callable[[nn.Module], nn.Module]
    size: int = 224
    normalisation: tuple[tuple[float, float, float], tuple[float, float, float]] = IMAGENET


def _before_last_pooling(model: Any) -> nn.Module:
    return model.features[:-1]


def _children_before(layer: str) -> Callable[[nn.Module], nn.Module]:
    def trunk(model: nn.Module) -> nn.Module:
        names = [name for name, _ in model.named_children()]
        kept = [name for name in names[: names.index(layer)] if not name.startswith("aux")]
        sequence = nn.Sequential()
        for name in kept:
            sequence.add_module(name, model.get_submodule(name))
        return sequence

    return trunk


def _densenet(model: Any) -> nn.Module:
    sequence = nn.Sequential()
    for name, child in model.features.named_children():
        sequence.add_module(name, child)
    sequence.add_module("relu", nn.ReLU(inplace=True))  # torchvision applies it after ``features``
    return sequence


def _up_to(trunk: nn.Module, layer: str, name: str) -> nn.Module:
    """The part of a network that ends with the named layer: "layer3", or "transition3.relu" inside another."""
    first, _, inner = layer.partition(".")
    children = dict(trunk.named_children())
    if not name.startswith(("resnet", "densenet")):
        raise ConfigError(f"encoder.options.layer is for ResNets and DenseNets, the encoder is {name!r}")
    if first not in children:
        raise ConfigError(f"encoder.options.layer: {name} has no layer {layer!r} there; it has {', '.join(children)}")
    sequence = nn.Sequential()
    for key, child in children.items():
        sequence.add_module(key, _up_to(child, inner, name) if inner and key == first else child)
        if key == first:
            break
    return sequence


NETWORKS = {
    "alexnet": Network(_before_last_pooling, size=240),
    "googlenet": Network(_children_before("maxpool4"), normalisation=HALF),
    "vgg16": Network(_before_last_pooling),
    "vgg19": Network(_before_last_pooling),
    "resnet50": Network(_children_before("avgpool")),
    "resnet101": Network(_children_before("avgpool")),
    "resnet152": Network(_children_before("avgpool")),
    "densenet121": Network(_densenet),
    "densenet201": Network(_densenet),
}
OPTIONS = {"stride_in_1x1", "layer"}


class TorchvisionCNN(Encoder):
    def __init__(
        self,
        name: str,
        weights: str = "random",
        image_size: int | None = None,
        grid: int | None = None,
        fit: Literal["crop", "squash"] = "crop",
        options: dict[str, Any] | None = None,
        preprocess: Preprocess | None = None,
        shape: tuple[int, int, int] | None = None,
    ):
        super().__init__()
        network = NETWORKS[name]
        file = None if weights in ("library", "random") else WeightsFile.read(weights)
        self.name, self.grid = name, grid
        self.options = dict(options or {}) | (file.options if file else {})
        if unknown := set(self.options) - OPTIONS:
            raise ConfigError(f"encoder.options: {name} has no {sorted(unknown)}; it knows {sorted(OPTIONS)}")
        tensors = file.tensors() if file else {}
        model = self._build(weights, auxiliary=any(key.startswith("aux") for key in tensors))
        if file:
            file.check_arch(name)
            load_strictly(self._part(model, file), tensors, file.path)
        if self.options.get("stride_in_1x1"):
            _stride_in_first_convolution(model, name)
        self.trunk = network.trunk(model)
        if layer := self.options.get("layer"):
            self.trunk = _up_to(self.trunk, str(layer), name)
        mean, std = (file.mean, file.std) if file and file.mean and file.std else network.normalisation
        size = image_size or network.size
        self.preprocess = preprocess or Preprocess(
            size=size, resize=round(size * 256 / 224), mean=mean, std=std, fit=fit
        )
        self.measure(shape)

    def _build(self, weights: str, auxiliary: bool = False) -> nn.Module:
        """torchvision's network; GoogLeNet with its auxiliary classifiers only where the weights have them."""
        from sightline.nn.torchvision_import import torchvision  # takes seconds: only who needs it waits

        arguments: dict[str, Any] = {"weights": "DEFAULT" if weights == "library" else None}
        if self.name == "googlenet":
            # Its own truncated normal takes half a minute; torch's default serves.
            arguments |= {"init_weights": False, "aux_logits": auxiliary}
        try:
            return getattr(torchvision.models, self.name)(**arguments)
        except OSError as error:
            raise ConfigError(
                f"the weights of {self.name} could not be downloaded ({error}); "
                f"give a file with --set encoder.weights=FILE.safetensors, or 'random'"
            ) from None

    @staticmethod
    def _part(model: nn.Module, file: WeightsFile) -> nn.Module:
        try:
            return model.get_submodule(file.submodule)
        except AttributeError:
            part = file.submodule
            raise ConfigError(f"{file.path.name} holds weights of a part {part!r} that {file.arch} has not") from None

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.trunk(images)
        check_grid(self.name, maps.shape[-1], self.grid, self.preprocess.size)
        return pool_to(maps, self.grid), maps.mean((2, 3))


def _stride_in_first_convolution(model: Any, name: str) -> None:
    """He et al.'s own ResNets: stages 2-4 stride in their first 1x1 convolution, torchvision's in the 3x3."""
    if not name.startswith("resnet"):
        raise ConfigError(f"encoder.options.stride_in_1x1 is for ResNets, the encoder is {name!r}")
    for stage in (model.layer2, model.layer3, model.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
