"""What a run keeps on disk: its whole state, to resume from, and curves for people, as JSONL and for TensorBoard.

The state is one safetensors file, replaced atomically: resuming continues to the bit.
Trained weights, optimizer moments, averaged weights, the objective's buffers and random-number states are tensors;
counters, the schedule and scores are JSON in the file's metadata. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from sightline.errors import CheckpointError, ConfigError, install_command, nearest
from sightline.io.files import cause, write_atomically, writing
from sightline.nn.checkpoint import read_tensors, save_tensors
from sightline.recipes.config import differences
from sightline.tokenizers import Tokenizer
from sightline.training.optimization import AveragedWeights, Schedule
from sightline.types import METRIC_NAMES

log = logging.getLogger("sightline.training")
TRACKERS = {"wandb": "Weights & Biases", "mlflow": "MLflow"}


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
    fresh: dict[str, Any],
) -> dict[str, Any]:
    """Restore everything; returns the run's progress.

    ``fresh`` is the progress of a new run: `ConfigError` where its recipe or its tokens are others.
    """
    tensors, metadata = read_tensors(path)
    try:
        facts = json.loads(metadata["facts"])
        _check_recipe(path.parent, facts["progress"]["recipe"], fresh["recipe"])
        if facts["progress"].get("tokens", fresh["tokens"]) != fresh["tokens"]:  # states of before have none
            raise ConfigError(
                f"the captions have changed since {path.parent} was begun, and with them the vocabulary: resume with "
                "the same captions or choose another --output"
            )
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
        return fresh | facts["progress"]
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be resumed from: {error}") from None


def _check_recipe(folder: Path, begun: dict[str, Any], recipe: dict[str, Any]) -> None:
    if differ := differences(begun, recipe):
        raise ConfigError(
            f"{folder} was begun with other settings: {', '.join(differ)}; resume with the same recipe and the same "
            "--set options"
        )


def tokens_digest(tokenizer: Tokenizer) -> str:
    """A hash of the tokens in their order: weights belong to these words alone."""
    return hashlib.sha256(json.dumps(tokenizer.tokens).encode()).hexdigest()[:16]


def _kept(step: nn.Module) -> dict[str, Tensor]:
    """What training changes: trained parameters and buffers. A frozen encoder is built from its own weights again."""
    parameters = {name: p for name, p in step.named_parameters() if p.requires_grad}
    buffers = {name: b for name, b in step.named_buffers() if ".encoder." not in f".{name}"}
    return parameters | buffers


class Records:
    """``history.jsonl`` holds one object per epoch; a resumed run first drops epochs it is about to repeat."""

    def __init__(self, folder: Path, epoch: int = 0, tracker: Accelerator | None = None):
        self.path, self.tracker = folder / "history.jsonl", tracker
        kept = [record for record in read_history(folder) if record["epoch"] < epoch]
        write_atomically(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        self.board = _tensorboard(folder)

    def step(self, number: int, values: dict[str, float]) -> None:
        self._draw("train", values, number)
        self._track("train", values, number)

    def epoch(self, record: dict[str, Any], samples: list[tuple[str, str, str]], updates: int = 0) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "epoch"}
        self._draw("epoch", numbers, record["epoch"])
        self._track("epoch", {**numbers, "number": record["epoch"] + 1}, updates)
        log.info("%s", epoch_line(record))
        for name, caption, reference in samples:
            log.info("    %-26.26s %-50.50s | %s", name, caption, reference)

    def _draw(self, kind: str, values: dict[str, float], number: int) -> None:
        """Points of TensorBoard's curves. Where they cannot be written, training goes on without them."""
        if self.board is None:
            return
        try:
            for name, value in values.items():
                self.board.add_scalar(f"{kind}/{name}", value, number)
            if kind == "epoch":
                self.board.flush()
        except OSError as error:
            log.warning("no more curves for TensorBoard: %s; history.jsonl has the numbers", cause(error))
            self.board = None

    def _track(self, kind: str, values: dict[str, float], updates: int) -> None:
        """The same numbers for the tracker, by updates. If it fails, training goes on without it."""
        if self.tracker is None:
            return
        try:
            self.tracker.log({f"{kind}/{name}": value for name, value in values.items()}, step=updates)
        except Exception as error:  # of the tracker's library
            log.warning("the tracker failed, training goes on: %s: %s", type(error).__name__, error)
            self.tracker = None


def check_tracker(name: str | None) -> None:
    """Raise `ConfigError` unless the tracker is known and its library is installed."""
    if name is None:
        return
    if name not in TRACKERS:
        raise ConfigError(f"there is no tracker {name!r}{nearest(name, TRACKERS)}: choose {' or '.join(TRACKERS)}")
    if find_spec(name) is None:
        raise ConfigError(f"--tracker {name} needs {TRACKERS[name]}: pip install {name}")


def start_tracker(accelerator: Accelerator, folder: Path, recipe: dict[str, Any]) -> None:
    """A run in W&B's or MLflow's project ``sightline``, called as the run's folder, with the recipe's values."""
    values = {
        f"{section}.{key}": value if isinstance(value, str | int | float) else json.dumps(value)
        for section, content in recipe.items()
        for key, value in (content if isinstance(content, dict) else {"": content}).items()
    }
    name = folder.resolve().name
    try:
        accelerator.init_trackers("sightline", values, {"wandb": {"name": name}, "mlflow": {"run_name": name}})
    except Exception as error:  # of the tracker's library: no account, no network
        raise ConfigError(f"the tracker cannot start: {type(error).__name__}: {error}") from None
    if not accelerator.trackers:
        raise ConfigError("the tracker cannot start: accelerate does not find its library; install it again")


def epoch_line(record: dict[str, Any]) -> str:
    shown = {
        "train loss": ("train_nll", "{:.3f}"),
        "reward": ("train_reward", "{:.3f}"),
        "false objects": ("train_false_objects", "{:.3f}"),
        "val loss": ("val_nll", "{:.3f}"),
        METRIC_NAMES["cider"]: ("cider", "{:.1f}"),
        METRIC_NAMES["bleu_4"]: ("bleu_4", "{:.1f}"),
        "minutes": ("minutes", "{:.1f}"),
    }
    # Scores as in the tables
    shown_values = {key: 100 * value if key in METRIC_NAMES else value for key, value in record.items()}
    parts = [f"{label} {form.format(shown_values[key])}" for label, (key, form) in shown.items() if key in shown_values]
    for source, scores in record.get("sources", {}).items():
        parts.append(f"{source} {100 * scores['cider']:.1f}")
    return f"epoch {record['epoch'] + 1}: " + ", ".join(parts) + ("  (best so far)" if record.get("best") else "")


def scores_line(scores: dict[str, float]) -> str:
    return "val " + ", ".join(f"{METRIC_NAMES[name]} {100 * scores[name]:.1f}" for name in ("cider", "bleu_4"))


def passed(start: dict[str, float], best: dict[str, Any], metric: str) -> bool:
    """Whether a run passed the model it started from; by CIDEr-D where the epochs were chosen by their loss."""
    name = "cider" if metric == "loss" else metric
    return best[name] > start[name]


def gain(start: dict[str, float], best: dict[str, Any], metric: str) -> str:
    name = "cider" if metric == "loss" else metric
    before, after = f"{100 * start[name]:.1f}", f"val {METRIC_NAMES[name]} {100 * best[name]:.1f}"
    if passed(start, best, metric):
        return f"{after}, the model it started from {before}"
    return f"no epoch was better than the model it started from: {after} at best, {before} before"


def read_history(folder: Path) -> list[dict[str, Any]]:
    path = folder / "history.jsonl"
    if not path.exists():
        return []
    records = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(text))
        except ValueError:
            continue  # the line a killed run was writing
    return records


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("no curves for TensorBoard: %s adds them; history.jsonl has the numbers", install_command("train"))
        return None
    try:
        return SummaryWriter(str(folder / "tensorboard"))
    except OSError as error:
        log.warning("no curves for TensorBoard: %s; history.jsonl has the numbers", cause(error))
        return None
