"""The metrics where neither torch nor onnxruntime nor Pillow is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "onnx", "onnxruntime", "PIL"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", BLOCK + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_scores_captions_with_the_metrics_alone() -> None:
    code = """
from sightline.evaluation.metrics import score
print(score(["a dog runs"], [["a dog runs", "the dog is running"]], ["bleu", "rouge", "cider"])["rouge_l"])
"""
    assert float(run(code)) == 1.0


def test_the_command_scores_a_results_file_with_the_metrics_alone(tmp_path: Path) -> None:
    results, references = tmp_path / "results.json", tmp_path / "references.json"
    results.write_text(json.dumps([{"image_id": 1, "caption": "a dog runs on grass"}]))
    annotations = [{"id": 1, "image_id": 1, "caption": "A dog runs on grass."}]
    references.write_text(json.dumps({"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": annotations}))
    code = "from sightline.__main__ import main; main()"
    output = run(code, "score", str(results), "--references", str(references), "--metrics", "bleu,rouge")
    assert "ROUGE-L" in output and "100.0" in output
