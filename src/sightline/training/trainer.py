"""The one training loop: any recipe, resumable to the bit, selected by the quality of generated val captions."""

from __future__ import annotations

import json
import logging
import math
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, gather_object, set_seed

from sightline.data import Dataset, load_datasets
from sightline.data.loader import Batch
from sightline.data.reading import write_results
from sightline.engine.captioner import Captioner
from sightline.engine.torch_backend import TorchBackend
from sightline.errors import ConfigError, ImageError, SightlineError
from sightline.evaluation.metrics import score
from sightline.io.files import counted, write_atomically
from sightline.io.model_files import RUN
from sightline.io.progress import duration, track
from sightline.nn.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sightline.nn.hub import resolve
from sightline.recipes.config import Recipe, load_recipe
from sightline.training.objectives.base import token_losses
from sightline.training.optimization import AveragedWeights, Schedule, build_optimizer
from sightline.training.report import CAPTIONS, try_report
from sightline.training.setup import Parts, Step, build_parts
from sightline.training.state import (
    Records,
    check_tracker,
    gain,
    load_state,
    passed,
    save_state,
    scores_line,
    start_tracker,
    tokens_digest,
)

log = logging.getLogger("sightline.training")
QUICK_METRICS = ("bleu", "rouge", "cider")


def train(
    recipe: Recipe | str | Path,
    data: str | Path | Dataset | Sequence[str | Path],
    output: str | Path,
    resume: bool = False,
    format: str = "auto",
    tracker: str | None = None,
) -> dict[str, Any]:
    """Train a recipe on a dataset, or several, into a model folder; returns the best epoch's record.

    ``recipe`` is a recipe's name, such as "own-photos", a .toml file, or what `load_recipe` makes of either.
    ``tracker`` is "wandb" or "mlflow", where the curves are shown, too.
    """
    check_tracker(tracker)
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))
    paths = [data] if isinstance(data, str | Path) else data
    dataset = paths if isinstance(paths, Dataset) else load_datasets(paths, format)
    log.info("%s", dataset.report.without_notes())
    try:
        return Trainer(chosen, dataset, Path(output), resume, tracker).run()
    except ImageError as error:
        raise ImageError(f"{error}; `sightline doctor --data DATASET` lists all such photos") from None


class Trainer:
    def __init__(
        self, recipe: Recipe, dataset: Dataset, output: Path, resume: bool = False, tracker: str | None = None
    ):
        self.recipe, self.settings, self.output = recipe, recipe.training, output
        AcceleratorState._reset_state()  # of an earlier run in this process, which may have had another precision
        self.accelerator = Accelerator(
            mixed_precision=self.settings.precision,
            gradient_accumulation_steps=self.settings.accumulate,
            step_scheduler_with_optimizer=False,
            log_with=tracker,
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )
        self._check_output(dataset, resume)
        set_seed(self.settings.seed)
        self.parts = self._parts(dataset)
        self.model, self.tokenizer = self.parts.model, self.parts.tokenizer
        self.parts.objective.prepare(self.model, self.parts)
        step = Step(self.model, self.parts.objective)
        rate = self.settings.learning_rate
        encoder_rate = recipe.encoder.learning_rate or (rate if recipe.encoder.name == "patches" else rate / 10)
        self.optimizer = build_optimizer(step, self.settings.optimizer, rate, self.settings.weight_decay, encoder_rate)
        self.plain_step = step
        self.step, self.optimizer = self.accelerator.prepare(step, self.optimizer)
        self.batches = len(self.parts.train)
        updates = math.ceil(self.batches / self.settings.accumulate) * self.settings.epochs
        self.schedule = Schedule(self.optimizer, self.settings.schedule, round(self.settings.warmup * updates), updates)
        self.average = AveragedWeights(self.model, self.settings.average) if self.settings.average else None
        self.progress: dict[str, Any] = {
            "epoch": 0, "batch": 0, "updates": 0, "best": None, "best_epoch": -1, "bad": 0, "seconds": 0.0,
            "sums": {}, "finished": False, "recipe": recipe.to_dict(), "tokens": tokens_digest(self.tokenizer),
        }  # fmt: skip
        self.interrupted = False
        if resume and self._state_path.exists():
            self._resume()
            self._write_about(dataset)
        elif resume:
            log.warning("--resume found nothing to resume in %s: this is a new run, from the beginning", output)
        if tracker:
            start_tracker(self.accelerator, output, recipe.to_dict())
        self.records = None
        if self.accelerator.is_main_process:
            self.records = Records(output, self.progress["epoch"], self.accelerator if tracker else None)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Train to the end; a run that ends early leaves its report, too."""
        try:
            return self._run()
        finally:
            if self.accelerator.is_main_process:
                try_report(self.output, self.parts.val_examples, self.progress.get("start"), self.settings.metric)
            for tracker in self.accelerator.trackers:
                tracker.finish()

    def _run(self) -> dict[str, Any]:
        every, trained = self.model.count()
        epoch = counted(self.batches, "batch")
        log.info("%s parameters, %s trained; %s an epoch", f"{every:,}", f"{trained:,}", epoch)
        best: dict[str, Any] = self.progress.get("best_record") or {}
        self._score_start()
        self.last_saved = time.monotonic()
        with self._batch_first_on_interrupt():
            while self.progress["epoch"] < self.settings.epochs and not self.progress["finished"]:
                self._epoch()
                record = self._evaluate()
                if record.get("best"):
                    best = record
                self.progress["best_record"] = best
                self.progress |= {"epoch": self.progress["epoch"] + 1, "batch": 0, "sums": {}}
                if self.settings.patience and self.progress["bad"] >= self.settings.patience:
                    times = counted(self.settings.patience, "evaluation")
                    log.info("no better val %s for %s: done", self.settings.metric, times)
                    self.progress["finished"] = True
                self._save_state()
                self._stop_if_interrupted()
        self.accelerator.wait_for_everyone()
        if best and (start := self.progress.get("start")):
            log.info("%s", gain(start, best, self.settings.metric))
            best = {**best, "passed_start": passed(start, best, self.settings.metric)}
        return best

    def _epoch(self) -> None:
        self.step.train()
        number, started = self.progress["epoch"], time.monotonic()
        batches = self.parts.train.epoch(number, skip=self.progress["batch"])
        label = f"epoch {number + 1}/{self.settings.epochs}"
        for batch in track(batches, label, self.batches - self.progress["batch"]):
            self._update(batch.to(self.accelerator.device))
            self.progress["batch"] += 1
            if self.progress["batch"] % self.settings.accumulate:
                continue  # gradients that wait for more are not part of the state
            if self.interrupted or time.monotonic() - self.last_saved > 60 * self.settings.checkpoint_minutes:
                started = self._clock(started)
                self._save_state()
            self._stop_if_interrupted()
        self._clock(started)

    @contextmanager
    def _batch_first_on_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C stops after the batch at hand, with everything saved; a second one stops at once."""
        alone = self.accelerator.num_processes == 1 and threading.current_thread() is threading.main_thread()
        if not alone:
            yield
            return

        def ask(*_: Any) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _stop_if_interrupted(self) -> None:
        if self.interrupted:
            epoch, batch = self.progress["epoch"] + 1, self.progress["batch"]
            log.info("stopped in epoch %d after batch %d, all saved", epoch, batch)
            raise KeyboardInterrupt

    def _clock(self, started: float) -> float:
        now = time.monotonic()
        self.progress["seconds"] += now - started
        return now

    def _update(self, batch: Batch) -> None:
        last = (self.progress["batch"] + 1) % self.settings.accumulate == 0 or self.progress[
            "batch"
        ] + 1 == self.batches
        self.accelerator.gradient_state._set_sync_gradients(last)
        with self._no_sync_unless(last):
            loss, logs = self.step(batch)
            self._check_finite(loss, "loss")
            self.accelerator.backward(loss)
        sums = self.progress["sums"]
        for name, value in {"loss": loss.detach(), **logs}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        if not last:
            return
        if self.settings.clip:
            norm = self.accelerator.clip_grad_norm_(self.step.parameters(), self.settings.clip)
            if self.settings.precision != "fp16":
                self._check_finite(norm, "gradient's norm")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.progress["updates"] += 1
        if self.average:
            self.average.update()
        if self.records and self.progress["updates"] % 20 == 0:
            values = {name: float(value) for name, value in logs.items()}
            self.records.step(self.progress["updates"], {"loss": float(loss.detach()), **values})

    @contextmanager
    def _no_sync_unless(self, last: bool) -> Iterator[None]:
        if last:
            yield
        else:
            with self.accelerator.no_sync(self.step):
                yield

    def _check_finite(self, value: torch.Tensor, name: str) -> None:
        if not bool(torch.isfinite(value)):
            where = f"epoch {self.progress['epoch'] + 1}, batch {self.progress['batch'] + 1}"
            raise SightlineError(
                f"the {name} is {float(value.detach())} in {where}: training stopped, "
                f"{self.output} keeps the last good checkpoint; "
                "lower training.learning_rate or set training.clip, then --resume"
            )

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, Any]:
        epoch, count = self.progress["epoch"], max(1, self.progress["batch"])
        record: dict[str, Any] = {"epoch": epoch, "minutes": round(self.progress["seconds"] / 60, 2)}
        record |= {f"train_{name}": total / count for name, total in self.progress["sums"].items()}
        due = (epoch + 1) % self.settings.evaluate_every == 0 or epoch + 1 == self.settings.epochs
        samples: list[tuple[str, str, str]] = []
        captions: list[str] = []
        if due:
            with self._averaged():
                record |= self._val_losses()
                if self.recipe.data.text is None:  # without photos there is nothing to caption
                    captions = self._val_captions(self.parts.checkpoint({}))
                    record |= self._val_scores(captions)
                    samples = self._samples(captions)
                self._select(record)
                if record["best"] and captions and self.accelerator.is_main_process:
                    names = (example.name for example in self.parts.val_examples)
                    write_results(self.output / CAPTIONS, dict(zip(names, captions)))
        if self.records:
            self.records.epoch(record, samples, self.progress["updates"])
        return record

    def _score_start(self) -> None:
        """Score the model that a new run starts from: the baseline that the run should pass.

        Building that model draws random numbers, so the generator's state is restored afterwards.
        """
        fresh = not self.progress["epoch"] and not self.progress["batch"]
        if self.settings.init is None or not fresh or self.recipe.data.text is not None:
            return
        with torch.random.fork_rng(devices=[]):
            start = load_checkpoint(resolve(self.settings.init))
            if start.model.encoder.name != self.model.encoder.name:  # as yet, the added features have zero weights
                start = replace(self.parts.checkpoint({}), decoding=start.decoding)
            captions = self._val_captions(start)
        self.progress["start"] = self._val_scores(captions)
        log.info("%s as it is: %s", self.settings.init, scores_line(self.progress["start"]))

    def _val_scores(self, captions: list[str]) -> dict[str, Any]:
        """Scores of all val captions together and, in a mixture, of each source."""
        examples = self.parts.val_examples
        scores: dict[str, Any] = score(captions, [example.captions for example in examples], QUICK_METRICS)
        sources = list(dict.fromkeys(example.source for example in examples))
        if len(sources) > 1:
            scores["sources"] = {}
            for source in sources:
                rows = [i for i, example in enumerate(examples) if example.source == source]
                references = [examples[i].captions for i in rows]
                scores["sources"][source] = score([captions[i] for i in rows], references, QUICK_METRICS)
        return scores

    def _select(self, record: dict[str, Any]) -> None:
        """Keep the model if this is the best epoch so far."""
        value = -record["val_nll"] if self.settings.metric == "loss" else record[self.settings.metric]
        self.schedule.evaluated(value)
        best = self.progress["best"]
        record["best"] = best is None or value > best
        self.progress["bad"] = 0 if record["best"] else self.progress["bad"] + 1
        if record["best"]:
            self.progress |= {"best": value, "best_epoch": record["epoch"]}
            if self.accelerator.is_main_process:
                every, trained = self.model.count()
                facts = {
                    "val": record, "parameters": every, "trained": trained, "seed": self.settings.seed,
                    "train_photos": len(self.parts.references),
                }  # fmt: skip
                if "start" in self.progress:
                    facts["start"] = self.progress["start"]
                save_checkpoint(self.output, self.parts.checkpoint(facts))

    @torch.no_grad()
    def _val_losses(self) -> dict[str, float]:
        """Teacher-forced loss per token, per character and per caption: the last two compare across tokenizers.

        A caption cut at the length limit counts with the characters that are left of it. The loss per caption is the
        loss per character times the characters of a whole caption, so that a cut does not lower it.
        """
        self.model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.accelerator.device)
        for batch in self.parts.val.epoch(0):
            batch = batch.to(self.accelerator.device)
            output = self.model(batch.photos, batch.tokens[:, :-1])
            _, nll, mask = token_losses(output, batch.tokens, self.tokenizer.pad)
            sums += torch.stack([nll.sum(), mask.sum()]).double()
        total, tokens = self.accelerator.reduce(sums).tolist()
        texts = [text for example in self.parts.val_examples for text in example.captions]
        per_character = total / sum(map(self.tokenizer.character_count, texts))
        whole = sum(len(self.tokenizer.normalise(text)) + 1 for text in texts) / len(texts)
        return {
            "val_nll": total / tokens,
            "val_nll_per_character": per_character,
            "val_nll_per_caption": per_character * whole,
        }

    @torch.no_grad()
    def _val_captions(self, checkpoint: Checkpoint) -> list[str]:
        """What a model with this run's encoder says of the val photos."""
        self.model.eval()
        captioner = Captioner([TorchBackend(checkpoint, self.accelerator.device)])
        count, rank, world = (
            len(self.parts.val_examples),
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        mine = list(range(rank, count, world))
        captions: list[tuple[int, str]] = []
        options = captioner.options(want_attention=False)
        for start in track(range(0, len(mine), 50), "captioning val", -(-len(mine) // 50)):
            photos = mine[start : start + 50]
            inputs = self.parts.val.source(photos, random.Random(0)).to(self.accelerator.device)
            features = self.model.features(inputs)
            found = captioner.finish(captioner.decode([features], options), [features])
            captions += zip(photos, (caption.text for caption in found))
        if world > 1:
            captions = gather_object(captions)
        return [text for _, text in sorted(captions)]

    def _samples(self, captions: list[str]) -> list[tuple[str, str, str]]:
        examples = self.parts.val_examples
        chosen = range(0, len(examples), max(1, len(examples) // 3))
        return [(examples[i].name, captions[i], examples[i].captions[0]) for i in list(chosen)[:3]]

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        self.model.eval()
        if self.average:
            self.average.swap()
        try:
            yield
        finally:
            if self.average:
                self.average.swap()

    # -- the run's folder ---------------------------------------------------------------------------------------------

    @property
    def _state_path(self) -> Path:
        return self.output / "state.safetensors"

    def _check_output(self, dataset: Dataset, resume: bool) -> None:
        if self._state_path.exists() and not resume:
            raise ConfigError(
                f"{self.output} already holds a run: continue it with --resume or choose another --output"
            )
        if not self._state_path.exists():
            self._write_about(dataset)

    def _write_about(self, dataset: Dataset) -> None:
        if self.accelerator.is_main_process:
            about = {"data": dataset.name.split("+"), "recipe": self.recipe.to_dict()}
            write_atomically(self.output / RUN, json.dumps(about, indent=2) + "\n")

    def _parts(self, dataset: Dataset) -> Parts:
        """Process 0 builds first, and with it the feature cache; the others find it ready."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        with self.accelerator.main_process_first():
            return build_parts(self.recipe, dataset, rank, world)

    def _save_state(self) -> None:
        self.last_saved = time.monotonic()
        if self.accelerator.is_main_process:
            save_state(self._state_path, self.plain_step, self.optimizer, self.schedule, self.average, self.progress)

    def _resume(self) -> None:
        progress = load_state(
            self._state_path, self.plain_step, self.optimizer, self.schedule, self.average, self.progress
        )
        self.progress = progress
        log.info("resumed at epoch %d, batch %d, after %s", progress["epoch"] + 1, progress["batch"],
                 duration(progress["seconds"]))  # fmt: skip
