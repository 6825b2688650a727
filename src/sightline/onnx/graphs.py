"""A model as three ONNX graphs: pixels to features, features to a state, a token and a state to the next ones.

The graphs are the networks' own ``forward``, ``start`` and ``step``, written down by torch's exporter: nothing of a
network is described a second time. `docs/export.md` says what their tensors are.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from sightline.decoding.hypotheses import DecoderState
from sightline.nn.checkpoint import CaptionModel
from sightline.nn.decoders import Decoder
from sightline.nn.encoders import Encoder
from sightline.types import ImageFeatures

OPSET = 20
# Two photos of three captions each, three words along: torch takes a size of 0 or 1 for fixed, larger ones as free.
PHOTOS, BEAMS, LENGTH = 2, 3, 3

Free = dict[int, str]  # which dimensions of a tensor are not fixed, and what they are called
PER_PHOTO: Free = {0: "photos"}
PER_ROW: Free = {0: "rows"}


class _Encode(nn.Module):
    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(pixels)
        return features.grid, features.pooled


class _Start(nn.Module):
    def __init__(self, decoder: Decoder, features: ImageFeatures):
        super().__init__()
        self.decoder, self.height, self.width = decoder, features.height, features.width

    def forward(self, grid: Tensor, pooled: Tensor) -> tuple[Tensor, ...]:
        state = self.decoder.start(ImageFeatures(grid, pooled, self.height, self.width))
        return (*state.encoder_cache.values(), *state.hypotheses.values())


class _Step(nn.Module):
    def __init__(self, decoder: Decoder, example: DecoderState):
        super().__init__()
        self.decoder, self.photo, self.beam = decoder, list(example.encoder_cache), list(example.hypotheses)

    def forward(self, token: Tensor, values: list[Tensor]) -> tuple[Tensor, ...]:
        photo, beam = values[: len(self.photo)], values[len(self.photo) :]
        state = DecoderState(dict(zip(self.photo, photo)), dict(zip(self.beam, beam)))
        logits, state, extras = self.decoder.step(token, state)
        return (logits, *(state.hypotheses[name] for name in self.beam), *extras.values())


@torch.no_grad()
def export_graphs(model: CaptionModel) -> dict[str, Any]:
    """``encoder``, ``start`` and ``step`` as ONNX models in float32."""
    encoder, decoder = model.encoder.eval(), model.decoder.eval()
    graph, features = encoder_graph(encoder)
    return {"encoder": graph, **decoder_graphs(decoder, features)}


@torch.no_grad()
def encoder_graph(encoder: Encoder) -> tuple[Any, ImageFeatures]:
    """``encoder`` as an ONNX model in float32, and the features of the two photos it was traced with."""
    size = encoder.preprocess.size
    pixels = torch.rand(PHOTOS, 3, size, size)
    features = encoder(pixels)  # also fills what some networks keep from their first run
    graph = _export(
        _Encode(encoder), {"pixels": pixels}, {"pixels": PER_PHOTO}, {"grid": PER_PHOTO, "pooled": PER_PHOTO}
    )
    return graph, features


@torch.no_grad()
def decoder_graphs(decoder: Decoder, features: ImageFeatures) -> dict[str, Any]:
    """``start`` and ``step``, from features of two photos as an example."""
    first = decoder.start(features)
    state, token = first.repeat(BEAMS), torch.arange(PHOTOS * BEAMS) % decoder.vocabulary
    extras: dict[str, Tensor] = {}
    for _ in range(LENGTH):
        _, state, extras = decoder.step(token, state)
    photo = {f"photo.{name}": value for name, value in state.encoder_cache.items()}
    beam = {f"beam.{name}": value for name, value in state.hypotheses.items()}
    before, after = {}, {}
    for name, value in state.hypotheses.items():
        shapes = zip(first.hypotheses[name].shape, value.shape)
        growing = [axis for axis, (one, other) in enumerate(shapes) if axis and one != other]
        before[f"beam.{name}"] = PER_ROW | dict.fromkeys(growing, "length")
        after[f"next.{name}"] = PER_ROW | dict.fromkeys(growing, "length + 1")
    whole = {"grid": features.grid, "pooled": features.pooled}
    of_photos = dict.fromkeys((*whole, *photo), PER_PHOTO)
    started = of_photos | dict.fromkeys(beam, PER_PHOTO)  # one hypothesis each
    stepped = {"logits": PER_ROW, **after, **dict.fromkeys(extras, PER_ROW)}
    outputs = {name: started[name] for name in (*photo, *beam)}
    inputs = {"token": PER_ROW, **of_photos, **before}
    return {
        "start": _export(_Start(decoder, features), whole, of_photos, outputs),
        "step": _export(_Step(decoder, state), {"token": token, **photo, **beam}, inputs, stepped),
    }


def _export(module: nn.Module, inputs: dict[str, Tensor], free: dict[str, Free], outputs: dict[str, Free]) -> Any:
    """One graph; ``free`` and ``outputs`` name the dimensions of its tensors that are not fixed."""
    tensors: list[Any] = list(inputs.values())
    shapes: list[Any] = [free[name] for name in inputs]
    if isinstance(module, _Step):  # a token and the values of a state
        tensors, shapes = [tensors[0], tensors[1:]], [shapes[0], shapes[1:]]
    with quietly():
        program = torch.onnx.export(
            module.eval(),
            tuple(tensors),
            dynamo=True,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=tuple(shapes),
            opset_version=OPSET,
            verbose=False,
        )
    model = cast(Any, program).model_proto
    _tidy(model.graph, free | outputs)
    return model


def _tidy(graph: Any, free: dict[str, Free]) -> None:
    """Free dimensions by our names, equal constants once; no input that nothing reads, none of torch's notes."""
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for tensor in list(graph.initializer):
        kept = first.setdefault((tensor.data_type, tuple(tensor.dims), tensor.raw_data), tensor.name)
        if kept != tensor.name:
            same[tensor.name] = kept
            graph.initializer.remove(tensor)
    for node in graph.node:
        del node.metadata_props[:]
        for position, name in enumerate(node.input):
            node.input[position] = same.get(name, name)
    del graph.value_info[:]
    read = {name for node in graph.node for name in node.input}
    for value in [value for value in graph.input if value.name not in read]:
        graph.input.remove(value)
    for value in [*graph.input, *graph.output]:
        for axis, name in free[value.name].items():
            value.type.tensor_type.shape.dim[axis].dim_param = name


@contextmanager
def quietly() -> Iterator[None]:
    """Drop the warnings of exporter and quantiser: they concern their own code. What a user can fix is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
