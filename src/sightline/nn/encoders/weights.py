"""Pretrained weights from a file: ``NAME.safetensors`` in the library's own layout, with an optional ``NAME.json``.

The JSON says what the weights expect (``arch``, ``submodule``, ``input_size``, ``mean``, ``std``). Nothing in it is
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
from torch.overrides import TorchFunctionMode

from sightline.errors import CheckpointError, ConfigError

# The original ResNets stride in the first 1x1 convolution of a stage; the file describes that as a line of code.
KNOWN_CHANGES = {
    "for stage in (model.layer2, model.layer3, model.layer4): "
    "stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)": {"stride_in_1x1": True},
}


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
        path = Path(path).expanduser()
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
