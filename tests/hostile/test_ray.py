"""A job on a real Ray cluster whose actors are killed at random moments: every photo is captioned or reported once."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest
from bulking import check_complete, descendants, make_photos, parts, ray_cluster
from corpus import ROUNDS, report

from sightline.bulk.job import BulkOptions, caption_all
from sightline.bulk.job_folder import BulkOutput

PHOTOS = 60 * ROUNDS
KILLS = 1 + ROUNDS // 4


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
def test_actors_killed_at_random_moments_cost_nothing(
    tiny_flickr8k_kept: Path, tiny_model: Path, tmp_path: Path
) -> None:
    photos = make_photos(tiny_flickr8k_kept, tmp_path / "photos", PHOTOS)
    output = tmp_path / "captions.jsonl"
    killed: list[int] = []
    ended = threading.Event()
    chance = random.Random(19)

    def kill() -> None:
        """Kill one actor, wait until more parts are done, kill another."""
        wanted = 2
        while len(killed) < KILLS and not ended.wait(0.01):
            if len(parts(output)) >= wanted and (running := actors()):
                killed.append(chance.choice(running))
                os.kill(killed[-1], signal.SIGKILL)
                wanted = len(parts(output)) + chance.randint(1, max(1, PHOTOS // 4 // (KILLS + 1)))
                ended.wait(chance.random())

    target, models = BulkOutput(output, "jsonl", False), [str(tiny_model)]
    with ray_cluster() as cluster:
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            options = BulkOptions(part_size=4, batch_size=2)
            summary = caption_all([str(photos)], target, models, options, cluster=cluster)
        finally:
            ended.set()
            killer.join()
    assert killed
    assert summary.failed == PHOTOS // 10
    check_complete(photos, output)
    # On one machine the same job gives the same captions, and finds only the broken photos left to try here.
    alone = BulkOptions(part_size=4, workers=0)
    caption_all([str(photos)], BulkOutput(tmp_path / "alone.jsonl", "jsonl", False), models, alone)
    assert (tmp_path / "alone.jsonl").read_text() == output.read_text()
    again = caption_all([str(photos)], target, models, alone)
    assert again.photos == again.failed == PHOTOS // 10
    check_complete(photos, output)
    report(f"photos on a cluster of which {len(killed)} actors were killed", PHOTOS, 0, 0)
