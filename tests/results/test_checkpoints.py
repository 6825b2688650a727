"""The list of trained checkpoints agrees with the rows, and is made from the folders of runs."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

import checkpoints
from rows import read_json
from script import RESULTS, run
from sightline.recipes.plans import Plans, RowPlan, load_plans
from table import all_rows

needs_the_large_model = pytest.mark.skipif(
    not checkpoints.LARGE_MODEL.is_dir(), reason="the large model is not in this copy of the repository"
)


@needs_the_large_model
def test_the_page_agrees_with_its_json_file_and_the_rows() -> None:
    found, plans, rows = read_json(RESULTS / "checkpoints.json"), load_plans(), all_rows(RESULTS)
    page = (RESULTS / "checkpoints.md").read_text(encoding="utf-8")
    assert page == checkpoints.page(plans, found, rows), "run `python results/tools/checkpoints.py`"
    for title, row in (("default", "dinov2-coco-words"), ("large", "clip-coco-long")):
        assert re.search(rf"^\| the {title} model \| `{row}`, .* MB \| `{rows[row].checkpoint}\w+` \|$", page, re.M)
    scored = {
        plan.models[0]: rows[name].checkpoint
        for name, plan in plans.rows.items()
        if len(plan.models) == 1 and not plan.export
    }
    compared = [stage for stage in found if stage in scored]
    assert len(compared) >= 3
    for stage in compared:
        assert found[stage]["files"]["model.safetensors"]["sha256"].startswith(scored[stage])


@needs_the_large_model
def test_a_run_is_listed_with_its_size_and_digest(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rows import stages_of

    plans = Plans(stages=stages_of(finished_run), rows={"tiny": RowPlan(data="flickr8k", models=("tiny-words",))})
    row = next(iter(all_rows(RESULTS).values()))
    weights = (finished_run / "model.safetensors").read_bytes()
    digest = hashlib.sha256(weights).hexdigest()
    rows = {"tiny": row.model_copy(update={"signature": f"x|ckpt:{digest[:12]}"})}
    monkeypatch.setattr(checkpoints, "load_plans", lambda: plans)
    monkeypatch.setattr(checkpoints, "all_rows", lambda folder: rows)
    assert run(checkpoints.main, [str(finished_run.parent), "--results", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "checkpoints.json").read_text())
    assert found["tiny-words"]["files"]["model.safetensors"] == {"bytes": len(weights), "sha256": digest}
    assert digest in (tmp_path / "checkpoints.md").read_text()

    rows["tiny"] = row.model_copy(update={"signature": "x|ckpt:0123456789ab"})
    capsys.readouterr()
    assert run(checkpoints.main, [str(finished_run.parent), "--results", str(tmp_path)]) == 2
    assert "is not what the row of tiny-words was scored on" in capsys.readouterr().err
