"""The documents: sizes that a reader gets through, links that lead somewhere, and notebooks that run."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

import sightline
from sightline import cli
from sightline.io.files import find_images
from sightline.recipes.config import load_recipe, recipe_names
from sightline.serve.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
CARD = ROOT / "src" / "sightline" / "pretrained" / "default" / "README.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(
        page
        for folder in ("docs", "examples", "results", "benchmarks")
        for page in sorted((ROOT / folder).glob("*.md"))
    ),
    CARD,
]
NOTEBOOKS = {  # words that a reader of the executed notebook must find
    "caption-and-explain": ("dog", "image/png", "True", "greedy"),
    "train-a-tiny-model": ("image/png", "blue", "bleu_1", "data:image/jpeg"),
    "score-your-captions": ("bleu_4", "cider", "ROUGE-L -"),
}


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> Iterator[tuple[str, str]]:
    """The relative links of a page as (path, anchor), code left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)|^\[[^\]]+\]: (\S+)", text, flags=re.MULTILINE)
    for target in (first or second for first, second in targets):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_minutes_of_an_epoch_are_those_of_the_results() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    about = " ".join(page[page.index("An epoch takes minutes") : page.index("## Data")].split())
    for name in ("patch-transformer-word", "clip-transformer", "dinov2-transformer"):
        curve = json.loads((ROOT / "results" / f"{name}.curve.json").read_text(encoding="utf-8"))
        ends = [epoch["minutes"] for epoch in curve["epochs"]]
        minutes = [after - before for before, after in pairwise([0, *ends])]
        _, _, rest = about.partition(f"`{name}`")
        assert re.findall(r"\d+\.\d", rest)[:2] == [f"{min(minutes):.1f}", f"{max(minutes):.1f}"], name


def test_files_and_names_in_contributing_exist() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    page = re.sub(r"```.*?```", "", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    codes = [code for code in re.findall(r"`([^`\n]+)`", page) if "NAME" not in code]
    files = [code for code in codes if re.fullmatch(r"[\w/]+\.py", code)]
    identifiers = [code for code in codes if re.fullmatch(r"[A-Z]\w+", code)]
    assert len(files) > 5 and len(identifiers) > 10
    assert [file for file in files if not any(str(path).endswith(f"/{file}") for path in sources)] == []
    assert [name for name in identifiers if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(("page", "limit"), [("README.md", 6_000), ("RESULTS.md", 20_000)])
def test_the_first_pages_stay_short(page: str, limit: int) -> None:
    assert (ROOT / page).stat().st_size <= limit, "move details to docs/ or results/"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


def test_the_first_command_of_the_readme_explains_the_example_photo_and_the_last_runs_the_tests() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    first, last = commands[0].strip(), commands[-1].strip()
    assert first == (
        "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/sightline explain examples/dog.jpg -o dog.png"
    )
    assert last.startswith("python3 -m venv .venv && ") and last.endswith(".venv/bin/python -m pytest")
    assert re.findall(r"^python3 -m venv .*pytest.*", text, flags=re.MULTILINE) == [last]  # which .ci/run takes


def test_the_examples_are_captioned_without_our_own_figures() -> None:
    """The README captions the folder; a figure made of the photo would get a caption of its own."""
    assert list(find_images([ROOT / "examples"])) == [ROOT / "examples" / "dog.jpg"]


def test_the_limits_of_the_server_are_the_defaults() -> None:
    text = " ".join((ROOT / "docs" / "serve.md").read_text(encoding="utf-8").split())
    default = Settings()
    for limit in (
        f"{default.max_photos} photos (`--max-photos`)",
        f"{default.max_bytes >> 20} MB (`--max-bytes`)",
        f"{default.timeout:g} s, upload included (`--timeout`)",
        f"{default.queue} photos are in flight at once (`--queue`)",
        f"{default.max_pixels // 1_000_000} million pixels when decoded (`--max-pixels`)",
    ):
        assert limit in text


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `sightline` command in a page's shell blocks."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|(?!\|)", line.replace("…", "")):
                words = shlex.split(re.sub(r"\[(\w+)\]", r"\1", part), comments=True)
                starts = [
                    position for position, word in enumerate(words) if word in ("sightline", ".venv/bin/sightline")
                ]
                if starts and words[starts[0] - 1 : starts[0]] != ["install"]:
                    words = words[starts[0] + 1 :]
                    yield words[: words.index(">")] if ">" in words else words


@pytest.mark.parametrize("page", [page for page in PAGES if page != CARD and any(commands(page))], ids=names)
def test_every_command_in_a_page_has_its_verb_options_and_recipe_keys(page: Path) -> None:
    """Except the model card, whose commands belong to the commit that it names."""
    wrong = []
    for arguments in commands(page):
        command: Any = typer.main.get_command(cli.app)
        rest = getattr(cli, "with_address", list)(arguments)  # `--ray` takes an address or none
        while rest and rest[0] in getattr(command, "commands", ()):
            command, rest = command.commands[rest[0]], rest[1:]
        try:
            if not hasattr(command, "commands"):
                command.make_context(command.name, list(rest))
                if command.name == "train" and rest[0] in recipe_names():
                    load_recipe(rest[0], [value for option, value in pairwise(rest) if option == "--set"])
            elif command.name == "sightline":
                raise ValueError("no such verb")
        except Exception as error:  # wrong usage
            wrong.append(f"{' '.join(arguments)}: {error}")
    assert wrong == []


def test_every_notebook_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    path = ROOT / "examples" / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells), "strip its outputs"
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}})
    paths = [str(Path(sightline.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]  # the sources under test
    settings = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    client.execute(env={**os.environ, **settings})
    output = "\n".join(str(part) for cell in notebook.cells if cell.cell_type == "code" for part in cell.outputs)
    assert [word for word in NOTEBOOKS[name] if word not in output] == []
