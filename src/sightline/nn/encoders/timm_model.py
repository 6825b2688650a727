"""Any timm backbone by name: CLIP ViT-B/32, DINOv2, EfficientNet-Lite, TinyViT, ...

A convolutional feature map is the grid, and its mean the pooled vector. A vision transformer's patch tokens are the
grid, and its class token the pooled vector (the patches' mean where it has none).
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from sightline.errors import ConfigError, nearest
from sightline.io.preprocess import Preprocess
from sightline.nn.encoders.base import Encoder, WeightsFile, check_grid, load_strictly, pool_to

ALIASES = {
    "clip-vit-b16": "vit_base_patch16_clip_quickgelu_224",
    "clip-vit-b32": "vit_base_patch32_clip_224.openai",
    "dinov2-vits14": "vit_small_patch14_dinov2",
    "efficientnet-lite0": "tf_efficientnet_lite0",
    "efficientnet-lite1": "tf_efficientnet_lite1",
    "efficientnet-lite2": "tf_efficientnet_lite2",
    "tiny-vit-5m": "tiny_vit_5m_224",
}
DEFAULT_SIZE = {"vit_small_patch14_dinov2": 224}  # timm's own is 518: five times the work


def find_architecture(name: str) -> str:
    """timm's name of a network; `ConfigError` where it has none."""
    import sightline.nn.torchvision_import  # noqa: F401, I001  timm imports torchvision; both take seconds
    import timm

    arch = ALIASES.get(name, name)
    if not timm.is_model(arch):
        known = [*ALIASES, *timm.list_models()]
        raise ConfigError(
            f"unknown encoder {name!r}{nearest(name, known)}; `sightline doctor` lists the registered ones"
        )
    return arch


class TimmModel(Encoder):
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
        self.name, self.grid, self.options = name, grid, dict(options or {})
        arch = find_architecture(name)
        file = None if weights in ("library", "random") else WeightsFile.read(weights)
        if preprocess:
            image_size = preprocess.size
        size = image_size or (file.size if file else None) or DEFAULT_SIZE.get(arch)
        self.network = self._build(arch, size, weights == "library", dict(self.options))
        if file:
            file.check_arch(arch.split(".")[0])
            self._load(file)
        try:
            self.network.reset_classifier(0, "")
        except (AssertionError, TypeError, ValueError, NotImplementedError):
            raise self._no_grid() from None
        self.preprocess = preprocess or self._preprocess(size, file, fit)
        self.measure(shape)

    def _build(self, arch: str, size: int | None, pretrained: bool, arguments: dict[str, Any]) -> Any:
        import timm

        sized = arguments | ({"img_size": size} if size else {})  # a vision transformer is built for one size
        try:
            try:
                return timm.create_model(arch, pretrained=pretrained, **sized)
            except TypeError as error:
                if "'img_size'" not in str(error) or sized == arguments:
                    raise
            return timm.create_model(arch, pretrained=pretrained, **arguments)  # a convolutional network takes any
        except Exception as error:
            misuse = isinstance(error, TypeError | ValueError | AssertionError | RuntimeError)
            if misuse and not isinstance(error, OSError):  # the hub's client has many others: no network, offline mode
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ConfigError(f"encoder {self.name!r} cannot be built with {sized}: {reason}") from None
            raise ConfigError(
                f"the weights of {self.name!r} could not be downloaded ({type(error).__name__}); "
                f"give a file with --set encoder.weights=FILE.safetensors, or 'random'"
            ) from None

    def _load(self, file: WeightsFile) -> None:
        """Strict, but for a position embedding of another image size, which is resampled as timm does."""
        from timm.layers import resample_abs_pos_embed

        if file.options or file.submodule:
            asked = ", ".join([*file.options, *([f"submodule {file.submodule!r}"] if file.submodule else [])])
            raise ConfigError(f"{file.path.name} needs {asked}, which timm's {self.name!r} does not take")
        tensors = file.tensors()
        if not any(key in tensors for key in ("head.weight", "classifier.weight", "fc.weight", "head.fc.weight")):
            self.network.reset_classifier(0)  # weights without their classifier
        position = tensors.get("pos_embed")
        if position is not None and position.shape != self.network.pos_embed.shape:
            side = self.network.patch_embed.grid_size
            prefix = 0 if getattr(self.network, "no_embed_class", False) else self.network.num_prefix_tokens
            tensors["pos_embed"] = resample_abs_pos_embed(position, side, num_prefix_tokens=prefix)
        load_strictly(self.network, tensors, file.path)

    def _preprocess(self, size: int | None, file: WeightsFile | None, fit: Literal["crop", "squash"]) -> Preprocess:
        from timm.data import resolve_model_data_config

        library = resolve_model_data_config(self.network)
        size = size or int(library["input_size"][-1])
        return Preprocess(
            size=size,
            resize=round(size * 256 / 224),
            mean=(file and file.mean) or tuple(library["mean"]),
            std=(file and file.std) or tuple(library["std"]),
            fit=fit,
        )

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network.forward_features(images)
        if not isinstance(features, Tensor) or features.dim() not in (3, 4):
            raise self._no_grid()
        if features.dim() == 3:  # (B, prefix + N, D): a vision transformer
            if not hasattr(self.network, "num_prefix_tokens"):
                raise self._no_grid()
            prefix = self.network.num_prefix_tokens
            side = self.network.patch_embed.grid_size
            maps = features[:, prefix:].transpose(1, 2).unflatten(2, tuple(side))
            pooled = features[:, 0] if prefix else features.mean(1)
        else:
            maps = features.permute(0, 3, 1, 2) if getattr(self.network, "output_fmt", "") == "NHWC" else features
            pooled = maps.mean((2, 3))
        check_grid(self.name, maps.shape[-1], self.grid, self.preprocess.size)
        return pool_to(maps, self.grid), pooled

    def _no_grid(self) -> ConfigError:
        others = ", ".join(ALIASES)
        return ConfigError(f"timm's {self.name!r} gives no grid of features; choose another encoder, e.g. {others}")
