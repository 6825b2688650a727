"""How much faster a photo becomes a caption than with BLIP-base, which many use for captions on a CPU.

    pip install transformers
    python benchmarks/blip_speed.py [--photo PHOTO] [--model FOLDER] [--rounds 9] [--threads N]

Ours: the shipped model, beam 3, with onnxruntime and with torch. Theirs: `BlipForConditionalGeneration` in its default
configuration with random weights (how fast they are does not depend on what they are), 384 pixels, greedy search, 20
words. From the file to the sentence or its tokens, in one process, with the same number of threads, in turn; medians.
Processor time is what a machine with other work to do changes least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "dog.jpg"
WORDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photo", default=str(EXAMPLE))
    parser.add_argument("--model", default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # both runtimes ask for it when they are loaded
    contenders = {**ours(options.photo, [options.model] if options.model else []), "BLIP-base": blip(options.photo)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for turn in range(options.rounds + 1):
        for name, caption in contenders.items():
            began = time.perf_counter(), time.process_time()
            caption()
            if turn:  # the first warms up
                taken[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    medians = {name: tuple(map(statistics.median, zip(*times))) for name, times in taken.items()}
    slowest = medians["BLIP-base"]
    print(f"{f'{options.threads} threads':20}{'seconds':>20}{'processor':>12}{'faster':>10}{'processor':>12}")
    for name, (wall, processor) in medians.items():
        print(f"{name:20}{wall:20.3f}{processor:12.3f}{slowest[0] / wall:9.1f}×{slowest[1] / processor:11.1f}×")


def ours(photo: str, model: list[str]) -> dict[str, Callable[[], object]]:
    import sightline

    captioners = {runtime: sightline.load(*model, runtime=runtime) for runtime in ("onnx", "torch")}
    texts = {captioner.caption(photo, beam=3).text for captioner in captioners.values()}
    assert len(texts) == 1, f"the runtimes differ: {texts}"
    return {
        f"sightline, {runtime}": lambda captioner=captioner: captioner.caption(photo, beam=3)
        for runtime, captioner in captioners.items()
    }


def blip(photo: str) -> Callable[[], object]:
    import torch
    from PIL import Image

    from sightline.nn.torchvision_import import torchvision  # noqa: F401  before transformers, which needs it to load

    from transformers import BlipConfig, BlipForConditionalGeneration, BlipImageProcessor  # isort: skip

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model, processor = BlipForConditionalGeneration(BlipConfig()).eval(), BlipImageProcessor()

    @torch.inference_mode()
    def caption() -> object:
        pixels = processor(images=Image.open(photo).convert("RGB"), return_tensors="pt")["pixel_values"]
        assert pixels.shape == (1, 3, 384, 384), pixels.shape
        found = model.generate(pixels, min_new_tokens=WORDS, max_new_tokens=WORDS, num_beams=1, do_sample=False)
        assert found.shape[1] >= WORDS, found.shape
        return found

    return caption


if __name__ == "__main__":
    main()
