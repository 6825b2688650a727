"""How long METEOR and the PTB tokeniser take here and as jars, each from start to finish in a process of its own.

    python benchmarks/metrics_speed.py flickr8k/Flickr8k_text/Flickr8k.token.txt

Needs the `metrics` extra and, for the jars, Java. METEOR's index is built beforehand: it is made once per machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from sightline.evaluation.metrics.meteor_data import find_source

OURS = {
    "METEOR": """
from sightline.evaluation.metrics.meteor import Meteor
meteor = Meteor()
words = lambda text: text.split()
rows = meteor.statistics(list(map(words, captions)), [list(map(words, texts)) for texts in references])
print(meteor.aggregate(rows)["meteor"])
""",
    "PTB": """
from sightline.evaluation.metrics.ptb import tokenize_all
print(sum(map(len, tokenize_all([*captions, *(text for texts in references for text in texts)]))))
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captions", type=Path, help="Flickr8k.token.txt: name#number, a tab, a caption")
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 5000])
    options = parser.parse_args()
    by_image = defaultdict(list)
    for line in options.captions.read_text(encoding="utf-8").splitlines():
        name, _, caption = line.partition("\t")
        by_image[name.split("#")[0]].append(caption.lower().removesuffix(" ."))
    everything = list(by_image.values())
    run_ours("METEOR", everything[0][:1], everything[:1])  # builds the index where there is none
    print(f"{'':8}{'images':>8}{'here, s':>10}{'jar, s':>10}{'jar / here':>12}")
    for count in options.images:
        references = everything[:count]
        captions = [texts[0] for texts in [*references[1:], references[0]]]  # a caption of the next photo
        for name, run_jar in JARS.items():
            here = timed(run_ours, name, captions, references)
            jar = timed(run_jar, captions, references)
            print(f"{name:8}{count:8}{here:10.1f}{jar:10.1f}{jar / here:12.1f}", flush=True)


def timed(work: Callable[..., None], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def run_ours(name: str, captions: list[str], references: list[list[str]]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([captions, references], file)
        file.flush()
        code = "import json, sys; captions, references = json.load(open(sys.argv[1]))" + OURS[name]
        subprocess.run([sys.executable, "-c", code, file.name], check=True, stdout=subprocess.DEVNULL)


def run_meteor_jar(captions: list[str], references: list[list[str]]) -> None:
    """The protocol of the COCO caption tools: a line per image, its statistics back, all of them for the scores."""
    command = ["java", "-Xmx2G", "-jar", str(find_source().jar), "-", "-", "-stdio", "-l", "en", "-norm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdin and process.stdout
        statistics = []
        for caption, texts in zip(captions, references):
            print(" ||| ".join(["SCORE", *texts, caption]), file=process.stdin, flush=True)
            statistics.append(process.stdout.readline().strip())
        process.communicate(" ||| ".join(["EVAL", *statistics]) + "\n")


def run_ptb_jar(captions: list[str], references: list[list[str]]) -> None:
    """The tools start Java twice: for the captions and for the references."""
    jar = find_source().jar.parents[1] / "tokenizer/stanford-corenlp-3.4.1.jar"
    command = ["java", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    for lines in (captions, [text for texts in references for text in texts]):
        subprocess.run(command, input="\n".join(lines), encoding="utf-8", check=True, capture_output=True)


JARS = {"METEOR": run_meteor_jar, "PTB": run_ptb_jar}

if __name__ == "__main__":
    main()
