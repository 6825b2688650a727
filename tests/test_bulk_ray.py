"""Bulk jobs on a cluster: a real Ray with two workers, one of them killed in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bulking import descendants

import sightline
from sightline.bulk.inputs import JobPart
from sightline.bulk.job import BulkOptions, caption_all
from sightline.bulk.job_folder import BulkOutput
from sightline.errors import ConfigError
from sightline.types import Failure


def test_without_ray_one_line_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "sightline-captions\[ray\]"'):
        caption_all([str(tmp_path)], BulkOutput(tmp_path / "a.csv", "csv", False), cluster="auto")
    assert list(tmp_path.iterdir()) == []


def test_parts_travel_as_text():
    from sightline.bulk.ray import part_from_text, part_to_text

    for part in (JobPart(3, ("a.jpg", Failure("b", "is bad"), "\udcff.jpg")), JobPart(0, shard="00000.tar")):
        assert part_from_text(part_to_text(part)) == part


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[data]' pyarrow")
    pytest.importorskip("ray.data")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    source = str(Path(sightline.__file__).parents[1])
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}},
    )
    yield "local"
    ray.shutdown()


def actors() -> list[int]:
    """Processes of this test's cluster that caption, by the title Ray gives them."""
    found = []
    for process in descendants(os.getpid()):
        try:
            if b"CaptionParts" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to find the actors")
def test_an_actor_killed_in_the_middle_costs_nothing(
    cluster: str, tiny_flickr8k_kept: Path, tiny_model: Path, tmp_path: Path
):
    photos = tmp_path / "photos"
    photos.mkdir()
    drawn = sorted((tiny_flickr8k_kept / "Flicker8k_Dataset").iterdir())
    for number in range(60):
        shutil.copy(drawn[number % len(drawn)], photos / f"{number:03d}.jpg")
    (photos / "059.jpg").write_bytes(b"broken")
    output = tmp_path / "captions.jsonl"
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        while not killed and not ended.wait(0.01):
            if len(list((tmp_path / "captions.jsonl.parts").glob("part-*"))) >= 2 and (running := actors()):
                os.kill(running[0], signal.SIGKILL)
                killed.append(running[0])

    killer = threading.Thread(target=kill)
    killer.start()
    target = BulkOutput(output, "jsonl", False)
    options, models = BulkOptions(part_size=4, batch_size=2), [str(tiny_model)]
    try:
        summary = caption_all([str(photos)], target, models, options, cluster=cluster)
    finally:
        ended.set()
        killer.join()
    assert killed
    assert summary.failed == 1
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["source"] for row in rows] == [str(photos / f"{number:03d}.jpg") for number in range(59)]
    # On one machine the same job gives the same captions, and finds nothing left to do here.
    alone = BulkOptions(part_size=4, workers=0)
    caption_all([str(photos)], BulkOutput(tmp_path / "alone.jsonl", "jsonl", False), models, alone)
    assert (tmp_path / "alone.jsonl").read_text() == output.read_text()
    assert caption_all([str(photos)], target, models, alone).photos == 0


def test_features_built_by_the_cluster_are_those_of_one_machine(
    cluster: str, tiny_flickr8k_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from importlib import import_module

    from safetensors.torch import save_file

    from sightline.bulk.features import build_features, open_caches
    from sightline.recipes.config import load_recipe

    import_module("sightline.nn.torchvision_import")  # before timm
    import timm
    import torch

    save_file(timm.create_model("test_vit", pretrained=False).state_dict(), tmp_path / "vit.safetensors")
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        f'[encoder]\nname = "test_vit"\nweights = "{tmp_path}/vit.safetensors"\nimage_size = 32\n'
        '[tokenizer]\nname = "word"\nmin_count = 1\n'
        '[decoder]\nname = "transformer"\nwidth = 16\nheads = 2\nblocks = 1\n'
    )
    features = {}
    for name, address in (("here", None), ("there", cluster)):
        monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / name))
        (folder,) = build_features(str(recipe), [], [str(tiny_flickr8k_kept)], cluster=address)
        assert folder.is_relative_to(tmp_path / name)
        train, val = open_caches(load_recipe(str(recipe)), [str(tiny_flickr8k_kept)], "auto")
        assert (train.complete, val.complete, train.rows, val.rows) == (True, True, 8, 2)
        features[name] = torch.cat([train.features(range(8)).grid, val.features(range(2)).grid])
    assert torch.equal(features["here"], features["there"])
