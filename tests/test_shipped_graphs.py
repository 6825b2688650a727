"""The default model's graphs belong to its weights, and caption the example photos as torch does.

After new weights, or a change to a network's code: `sightline export default --int8-arithmetic`, and commit what it
wrote.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.engine.backend import as_array
from sightline.engine.captioner import load
from sightline.nn.hub import DEFAULT_MODEL
from sightline.onnx import Manifest
from sightline.onnx.exported import INT8_ARITHMETIC

ROOT = Path(__file__).parents[1]
PHOTOS = sorted([*(ROOT / "examples").glob("*.jpg"), *(ROOT / "web" / "public" / "examples").glob("*.jpg")])
LARGEST = 30 * 10**6


def test_the_shipped_graphs_belong_to_the_shipped_weights() -> None:
    manifest = Manifest.read(DEFAULT_MODEL)
    assert manifest.differs(DEFAULT_MODEL) == "", "run `sightline export default --int8-arithmetic`"
    for name, graph in manifest.graphs.items():
        assert len(manifest.read_graphs(DEFAULT_MODEL)[name]) == graph.bytes < 2e6
        assert graph.external_data
    assert manifest.precision == INT8_ARITHMETIC
    assert manifest.licence == "Apache-2.0"


def test_the_shipped_folder_stays_small() -> None:
    assert sum(file.stat().st_size for file in DEFAULT_MODEL.iterdir()) < LARGEST


def test_both_runtimes_give_the_same_captions_from_the_same_features(captioners: list) -> None:
    reference, exported = captioners
    (features,) = exported.encode([exported.prepare(path) for path in PHOTOS])
    tensors = replace(features, grid=torch.from_numpy(features.grid), pooled=torch.from_numpy(features.pooled))
    decoded = [
        captioner.finish(captioner.decode([own], captioner.options(candidates=3)), [own])
        for captioner, own in ((reference, tensors), (exported, features))
    ]
    for expected, found in zip(*decoded):
        assert [caption.text for caption in (found, *found.others)] == [
            caption.text for caption in (expected, *expected.others)
        ]
        assert found.confidence == pytest.approx(expected.confidence, abs=1e-3)
        for word, wanted in zip(found.words, expected.words):
            assert word.probability == pytest.approx(wanted.probability, abs=1e-3)
            np.testing.assert_allclose(word.attention, as_array(wanted.attention), atol=1e-4)


def test_computing_in_int8_changes_the_features_little(captioners: list) -> None:
    photos = [captioners[0].prepare(path) for path in PHOTOS]
    assert len(photos) > captioners[1].batch_size  # so that batches are joined
    (expected,), (found,) = (captioner.encode(photos) for captioner in captioners)
    assert (found.height, found.width) == (expected.height, expected.width)
    assert cosines(found.grid, as_array(expected.grid)).min() > 0.85
    assert cosines(found.grid, as_array(expected.grid)).mean() > 0.98
    assert cosines(found.pooled, as_array(expected.pooled)).min() > 0.96


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of the last dimension's vectors."""
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return (one * other).sum(-1) / norms


@pytest.fixture(scope="module")
def captioners() -> list:
    both = [load(runtime="torch"), load()]
    assert [captioner.runtimes for captioner in both] == [["torch"], ["onnxruntime, int8-arithmetic"]]
    return both


def test_the_server_captions_a_photo_alone_as_in_a_batch_and_loads_weights_once(
    captioners: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sightline.serve.batching import CaptionWork

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    whole = load()
    work = CaptionWork(whole, max_pixels=10**8)
    assert (work.threads, work.batch_size) == (2, 1)
    assert work.captioner is not whole
    query = work.query({}, explain=True)
    photos = [work.prepare(path.read_bytes()) for path in PHOTOS]
    alone = [work.decode(work.encode([photo]), query)[0].caption for photo in photos]
    batch = work.decode([work.encode([photo])[0] for photo in photos], query)
    assert [explanation.caption.text for explanation in batch] == [caption.text for caption in alone]
    assert [explanation.caption.score for explanation in batch] == pytest.approx(
        [caption.score for caption in alone], abs=1e-4
    )
    assert [caption.text for caption in alone] == [captioners[1].caption(path).text for path in PHOTOS]
    weights = [captioner.backends[0].sessions["encoder"].weights for captioner in (whole, work.captioner)]
    assert weights[0]
    assert all(weights[0][name] is weights[1][name] for name in weights[0]), "loaded once"


def test_the_first_command_imports_only_what_it_needs() -> None:
    script = (
        "import sys\nfrom sightline.cli import run\n"
        f"code = run(['caption', {str(PHOTOS[0])!r}])\n"
        "heavy = ('torch', 'torchvision', 'timm', 'onnx', 'safetensors', 'tokenizers', 'huggingface_hub', 'accelerate',"
        " 'sightline.data', 'sightline.recipes.config', 'PIL.TiffImagePlugin')\n"
        "sys.exit(code or ' '.join(name for name in heavy if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(".\n")
