"""The whole state of a training run in one safetensors file, replaced atomically: resuming continues to the bit.

Trained weights, optimizer moments, averaged weights, the objective's buffers and random-number states are tensors;
counters, the schedule and scores are JSON in the file's metadata. No pickle.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.errors import CheckpointError
from sightline.nn.checkpoint import read_tensors, save_tensors
from sightline.training.optimization import AveragedWeights, Schedule


def save_state(
    path: Path,
    step: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    average: AveragedWeights | None,
    progress: dict[str, Any],
) -> None:
    tensors = {f"weights/{name}": tensor for name, tensor in _kept(step).items()}
    described = optimizer.state_dict()
    plain: dict[str, dict[str, Any]] = {}
    for index, values in described["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    if average:
        tensors |= {f"average/{name}": tensor for name, tensor in average.average.items()}
    tensors["random/torch"] = torch.get_rng_state()
    facts = {
        "progress": progress,
        "schedule": schedule.state(),
        "optimizer": plain,
        "average_updates": average.updates if average else 0,
        "random": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],  # noqa: NPY002
    }
    save_tensors(
        path,
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
        {"facts": json.dumps(facts)},
    )


def load_state(
    path: Path,
    step: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    average: AveragedWeights | None,
) -> dict[str, Any]:
    """Restore everything; returns the run's progress."""
    tensors, metadata = read_tensors(path)
    try:
        facts = json.loads(metadata["facts"])
        kept = _kept(step)
        weights = {name.removeprefix("weights/"): t for name, t in tensors.items() if name.startswith("weights/")}
        if set(kept) != set(weights):
            odd = sorted(set(kept) ^ set(weights))[0]
            raise CheckpointError(
                f"{path} is of another recipe: {odd!r} does not fit; resume with the recipe it was started with"
            )
        with torch.no_grad():
            for name, tensor in kept.items():
                tensor.copy_(weights[name])
        described = optimizer.state_dict()
        moments: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in facts["optimizer"].items()}
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/")
                moments.setdefault(int(index), {})[key] = tensor
        described["state"] = moments
        optimizer.load_state_dict(described)
        schedule.restore(facts["schedule"])
        if average:
            average.updates = facts["average_updates"]
            for name, tensor in average.average.items():
                tensor.copy_(tensors[f"average/{name}"])
        torch.set_rng_state(tensors["random/torch"])
        version, numbers, gauss = facts["random"]
        random.setstate((version, tuple(numbers), gauss))
        np.random.set_state(tuple(facts["numpy"]))  # noqa: NPY002
        return facts["progress"]
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be resumed from: {error}") from None


def _kept(step: nn.Module) -> dict[str, Tensor]:
    """What training changes: trained parameters and buffers. A frozen encoder is built from its own weights again."""
    parameters = {name: p for name, p in step.named_parameters() if p.requires_grad}
    buffers = {name: b for name, b in step.named_buffers() if ".encoder." not in f".{name}"}
    return parameters | buffers
