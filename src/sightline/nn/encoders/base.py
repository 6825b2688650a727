"""What every encoder is: a network from pixels to a grid of vectors, with the preprocessing its weights expect.

Pretrained weights may come from a file: ``NAME.safetensors`` in the library's own layout, with an optional
``NAME.json`` that says what they expect (``arch``, ``submodule``, ``input_size``, ``mean``, ``std``). Nothing in it is
ever run: a change to the built network is taken only if it is one known here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sightline.errors import CheckpointError, ConfigError
from sightline.io.files import user_path
from sightline.io.preprocess import Preprocess
from sightline.types import ImageFeatures

# The original ResNets stride in the first 1x1 convolution of a stage; the file describes that as a line of code.
KNOWN_CHANGES = {
    "for stage in (model.layer2, model.layer3, model.layer4): "
    "stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)": {"stride_in_1x1": True},
}
Norms = (nn.modules.batchnorm._BatchNorm,)


class Encoder(nn.Module):
    """Subclasses set ``preprocess`` and implement ``maps``; ``spec`` rebuilds the same network without its weights."""

    name: str
    preprocess: Preprocess
    dimension: int
    height: int
    width: int
    trained: bool = True
    grid: int | None
    options: dict[str, Any]

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, S, S) to a feature map (B, D, H, W) and a vector (B, D)."""
        raise NotImplementedError

    def spec(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "grid": self.grid,
            "options": self.options,
            "preprocess": self.preprocess.to_json(),
            "shape": [self.dimension, self.height, self.width],
        }

    def forward(self, images: Tensor) -> ImageFeatures:
        maps, pooled = self.maps(images.contiguous(memory_format=torch.channels_last))  # twice as fast on a CPU
        return ImageFeatures(maps.flatten(2).transpose(1, 2), pooled, maps.shape[2], maps.shape[3])

    def measure(self, shape: tuple[int, int, int] | None = None) -> None:
        """The grid's depth, height and width: as given, or found by encoding one black image."""
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if shape:
            self.dimension, self.height, self.width = shape
            return
        with torch.no_grad():
            features = self.eval()(torch.zeros(1, 3, self.preprocess.size, self.preprocess.size))
        self.dimension, self.height, self.width = features.grid.shape[2], features.height, features.width

    def set_trainable(self, train: str) -> None:
        """ "frozen", "all", or the name of the first layer to be trained (it and all after it are)."""
        names = [name for name, _ in self.named_parameters()]
        first = {"frozen": len(names), "all": 0}.get(train)
        if first is None:
            first = next((i for i, name in enumerate(names) if f".{train}." in f".{name}."), None)
        if first is None:
            layers = ", ".join(dict.fromkeys(map(_layer, names)))
            raise ConfigError(f"encoder.train is {train!r}: {self.name} has no such layer; it has {layers}")
        self.trained = first < len(names)
        idle = self._idle() if self.trained else set()
        for index, (name, parameter) in enumerate(self.named_parameters()):
            parameter.requires_grad_(index >= first and name not in idle)
        self.train(self.training)

    def _idle(self) -> set[str]:
        """Weights no feature depends on, as a removed classifier's norm: processes would wait for their gradients."""
        names, parameters = zip(*self.requires_grad_(True).named_parameters())
        training = self.training
        size, device = self.preprocess.size, parameters[0].device
        with torch.enable_grad():
            features = self.eval()(torch.zeros(1, 3, size, size, device=device))
            total = features.grid.sum() + features.pooled.sum()
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        self.train(training)
        return {name for name, gradient in zip(names, gradients) if gradient is None}

    def train(self, mode: bool = True) -> Encoder:
        """Frozen means eval mode; a fine-tuned pretrained network keeps its batch norms' statistics."""
        super().train(mode and self.trained)
        for module in self.modules():
            if isinstance(module, Norms):
                module.eval()
        return self


def _layer(name: str) -> str:
    """The layer a weight belongs to, as one may type it: "layer4", "blocks.10"."""
    parts = name.removeprefix("trunk.").removeprefix("network.").split(".")
    return ".".join(parts[:2]) if parts[0] in ("blocks", "stages", "layers") else parts[0]


def pool_to(maps: Tensor, grid: int | None) -> Tensor:
    """Adaptive average pooling to grid x grid, only ever downwards: upwards it would repeat vectors."""
    return maps if grid is None or maps.shape[-2:] == (grid, grid) else F.adaptive_avg_pool2d(maps, grid)


def check_grid(name: str, maps_size: int, grid: int | None, image_size: int) -> None:
    if grid and grid > maps_size:
        wanted = -(-image_size * grid // maps_size // 32) * 32
        raise ConfigError(
            f"encoder.grid={grid}: {name} gives {maps_size}x{maps_size} cells at {image_size} pixels and pooling up "
            f"would repeat vectors; set encoder.image_size={wanted} or a smaller grid"
        )


@dataclass(frozen=True)
class WeightsFile:
    path: Path
    arch: str | None = None
    submodule: str = ""
    size: int | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the architecture, e.g. stride_in_1x1

    @classmethod
    def read(cls, path: str | Path) -> WeightsFile:
        path = user_path(path)
        if path.suffix == ".safetensors" and not path.exists():
            raise ConfigError(f"encoder.weights={str(path)!r} does not exist; give its path, 'library' or 'random'")
        if not path.is_file() or path.suffix != ".safetensors":
            raise ConfigError(
                f"encoder.weights={str(path)!r} is not a .safetensors file; give one, 'library' or 'random'"
            )
        sidecar = path.with_suffix(".json")
        if not sidecar.is_file():
            return cls(path)
        try:
            meta = json.loads(sidecar.read_text(encoding="utf-8"))
            change = meta.get("after_build")
            if change and change not in KNOWN_CHANGES:
                raise ConfigError(
                    f"{sidecar}: 'after_build' asks for a change that is not known and is never run: {change!r}"
                )
            return cls(
                path,
                arch=meta["arch"],
                submodule=str(meta.get("submodule") or ""),
                size=int(meta["input_size"][-1]),
                mean=tuple(float(value) for value in meta["mean"]),  # type: ignore[arg-type]
                std=tuple(float(value) for value in meta["std"]),  # type: ignore[arg-type]
                options=dict(KNOWN_CHANGES.get(change, {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{sidecar} does not describe weights: {error!r}") from None

    def check_arch(self, arch: str) -> None:
        if self.arch and self.arch != arch:
            raise ConfigError(f"{self.path.name} holds weights of {self.arch!r}, the encoder is {arch!r}")

    def tensors(self) -> dict[str, Tensor]:
        try:
            return {name: tensor.float() if tensor.is_floating_point() else tensor
                    for name, tensor in load_file(self.path).items()}  # fmt: skip
        except Exception as error:
            raise CheckpointError(f"{self.path} is not a readable safetensors file: {error}") from None


class Unfilled(TorchFunctionMode):
    """``with Unfilled():`` networks are built without drawing random weights, as all of them are loaded right after.

    Zeros take their place, not whatever lay in memory: torch draws truncated normals again until all are in range.
    """

    DRAWING = frozenset({"uniform_", "normal_", "erfinv_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"})

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in self.DRAWING:
            with torch.no_grad():
                return (args[0] if args else kwargs["tensor"]).zero_()
        return function(*args, **(kwargs or {}))


def load_strictly(module: nn.Module, tensors: dict[str, Tensor], source: str | Path) -> None:
    """As ``load_state_dict``, but a misfit is one line that names what is missing, extra or of another shape."""
    expected = module.state_dict()
    missing = [name for name in expected if name not in tensors]
    extra = [name for name in tensors if name not in expected]
    shapes = [
        f"{name} is {tuple(tensors[name].shape)}, expected {tuple(expected[name].shape)}"
        for name in expected
        if name in tensors and tensors[name].shape != expected[name].shape
    ]
    faults = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in (("tensors missing", missing), ("tensors too many", extra), ("shapes differ", shapes))
        if names
    ]
    if faults:
        raise CheckpointError(f"{source} does not fit the model: {'; '.join(faults)}")
    module.load_state_dict(tensors)


def fingerprint(module: nn.Module) -> str:
    """A hash of a network's weights: features cached for other weights are never taken for these."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())  # in logical order, whatever the memory layout
    return digest.hexdigest()[:16]
