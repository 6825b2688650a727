"""What a run leaves for people: curves as JSONL and for TensorBoard, and a line or table per epoch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from sightline.errors import install_command
from sightline.io.files import write_atomically

log = logging.getLogger("sightline.training")
NAMES = {"cider": "CIDEr-D", "bleu_4": "BLEU-4", "bleu_1": "BLEU-1", "rouge_l": "ROUGE-L"}


class Records:
    """``history.jsonl`` holds one object per epoch; a resumed run first drops epochs it is about to repeat."""

    def __init__(self, folder: Path, epoch: int = 0):
        self.path = folder / "history.jsonl"
        kept = [record for record in read_history(folder) if record["epoch"] < epoch]
        write_atomically(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        self.board = _tensorboard(folder)

    def step(self, number: int, values: dict[str, float]) -> None:
        if self.board:
            for name, value in values.items():
                self.board.add_scalar(f"train/{name}", value, number)

    def epoch(self, record: dict[str, Any], samples: list[tuple[str, str, str]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self.board:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "epoch":
                    self.board.add_scalar(f"epoch/{name}", value, record["epoch"])
            self.board.flush()
        log.info("%s", epoch_line(record))
        for name, caption, reference in samples:
            log.info("    %-26.26s %-50.50s | %s", name, caption, reference)


def epoch_line(record: dict[str, Any]) -> str:
    shown = {
        "train": ("train_nll", "{:.3f}"),
        "reward": ("train_reward", "{:.3f}"),
        "false objects": ("train_false_objects", "{:.3f}"),
        "val": ("val_nll", "{:.3f}"),
        "per char": ("val_nll_per_character", "{:.3f}"),
        NAMES["cider"]: ("cider", "{:.1f}"),
        NAMES["bleu_4"]: ("bleu_4", "{:.1f}"),
        "minutes": ("minutes", "{:.1f}"),
    }
    # Scores as in the tables
    shown_values = {key: 100 * value if key in NAMES else value for key, value in record.items()}
    parts = [f"{label} {form.format(shown_values[key])}" for label, (key, form) in shown.items() if key in shown_values]
    for source, scores in record.get("sources", {}).items():
        parts.append(f"{source} {100 * scores['cider']:.1f}")
    return f"epoch {record['epoch'] + 1}: " + ", ".join(parts) + ("  (best so far)" if record.get("best") else "")


def scores_line(scores: dict[str, float]) -> str:
    return "val " + ", ".join(f"{NAMES[name]} {100 * scores[name]:.1f}" for name in ("cider", "bleu_4"))


def passed(start: dict[str, float], best: dict[str, Any], metric: str) -> bool:
    """Whether a run passed the model it started from; by CIDEr-D where the epochs were chosen by their loss."""
    name = "cider" if metric == "loss" else metric
    return best[name] > start[name]


def gain(start: dict[str, float], best: dict[str, Any], metric: str) -> str:
    name = "cider" if metric == "loss" else metric
    before, after = f"{100 * start[name]:.1f}", f"{100 * best[name]:.1f}"
    if passed(start, best, metric):
        return f"val {NAMES[name]} {after}, the model it started from {before}"
    return f"no epoch was better than the model it started from: val {NAMES[name]} {after} at best, {before} before"


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
    return SummaryWriter(str(folder / "tensorboard"))
