"""The architecture: imports point upwards only, `import sightline` stays light, registries are plain dicts."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sightline

PACKAGE = Path(sightline.__file__).parent

# Top to bottom, each line one level: a file imports from its own level's folder or from above, never from below.
ORDER = [
    {"errors"},
    {"recipes"},
    {"types"},
    {"io"},
    {"data"},
    {"tokenizers"},
    {"decoding"},
    {"nn"},
    {"onnx"},
    {"engine"},
    {"evaluation"},
    {"training"},
    {"explain"},
    {"bulk"},
    {"serve"},
    {"cli"},
]
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}
ENTRANCES = {"__init__", "__main__"}  # they re-export or start what lies below
MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(source: str, module: Path) -> Iterator[tuple[int, str]]:
    """Line and part of every import from this package, wherever in the file it stands."""
    parents = module.relative_to(PACKAGE.parent).parts[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition(".")
                if package == "sightline" and rest:
                    yield node.lineno, rest.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            base = [] if node.level == 0 else list(parents[: len(parents) - node.level + 1])
            path = base + (node.module.split(".") if node.module else [])
            if path[:1] == ["sightline"]:
                yield from ((node.lineno, name) for name in path[1:2] or [alias.name for alias in node.names])


def misplaced(source: str, module: Path) -> list[str]:
    part = part_of(module)
    return [
        f"{module.relative_to(PACKAGE)}, line {line}: {part} imports {imported}"
        for line, imported in imports_of(source, module)
        if imported in LEVEL and imported != part and LEVEL[imported] >= LEVEL[part]
    ]


def test_every_part_of_the_package_has_its_place_in_the_plan() -> None:
    parts = {part_of(module) for module in MODULES} - ENTRANCES
    assert parts - set(LEVEL) == set()
    assert {"errors", "recipes", "nn", "training"} <= parts


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_point_upwards_only(module: Path) -> None:
    if part_of(module) not in ENTRANCES:
        assert misplaced(module.read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("nn/checkpoint.py", "from sightline.engine.captioner import load"),
        ("nn/checkpoint.py", "import sightline.onnx"),
        ("nn/checkpoint.py", "def late():\n    from sightline import engine"),
        ("nn/checkpoint.py", "from ..training.setup import Parts"),
        ("nn/encoders/base.py", "from ...onnx import Manifest"),
        ("tokenizers/base.py", "from sightline.nn.decoders.base import Decoder"),
        ("types.py", "import sightline.nn.torchvision_import"),
    ],
)
def test_an_import_from_below_would_be_noticed(file: str, line: str) -> None:
    assert len(misplaced(line, PACKAGE / file)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("nn/checkpoint.py", "from sightline.nn.encoders.base import Encoder"),
        ("nn/encoders/patches.py", "from .base import fingerprint"),
        ("nn/encoders/base.py", "from sightline import errors"),
        ("nn/encoders/base.py", "import numpy"),
    ],
)
def test_an_import_from_above_or_beside_is_fine(file: str, line: str) -> None:
    assert misplaced(line, PACKAGE / file) == []


HEAVY = ("torch", "torchvision", "timm", "pydantic", "numpy", "PIL", "safetensors", "accelerate", "rich", "typer")


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(name for name in {HEAVY!r} if name in sys.modules))"
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment, check=True
    )
    return set(answer.stdout.split())


def test_importing_sightline_imports_nothing_heavy() -> None:
    assert loaded_by("import sightline; sightline.__version__; dir(sightline)") == set()


def test_what_is_used_is_imported() -> None:
    assert loaded_by("import sightline; sightline.SightlineError; sightline.Caption") == set()
    assert "pydantic" in loaded_by("import sightline.recipes.config")


def test_torch_waits_for_a_model_that_needs_it() -> None:
    assert "torch" not in loaded_by("from sightline.engine.captioner import Captioner, load")
    assert "torch" not in loaded_by("import sightline.decoding, sightline.io.images, sightline.explain")


def test_every_public_name_can_be_reached() -> None:
    for name in sightline.__all__:
        assert getattr(sightline, name).__name__.removeprefix("sightline.") == name
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        sightline.lood  # noqa: B018


def test_explain_is_a_module_that_a_plain_import_reaches() -> None:
    code = (
        "import sightline; assert callable(sightline.explain.explain); from sightline import explain; explain.explain"
    )
    assert "torch" not in loaded_by(code)
    assert loaded_by("import sightline; 'explain' in dir(sightline)") == set()


def test_registries_are_plain_dicts_of_names() -> None:
    from sightline.data import DATASETS
    from sightline.evaluation.metrics import METRICS
    from sightline.nn.decoders import DECODERS
    from sightline.nn.encoders import ENCODERS
    from sightline.tokenizers import TOKENIZERS
    from sightline.training.objectives import OBJECTIVES

    for registry in (DATASETS, TOKENIZERS, ENCODERS, DECODERS, METRICS, OBJECTIVES):
        assert type(registry) is dict
        assert registry
        assert all(type(name) is str for name in registry)


def test_recipes_choose_among_exactly_the_registered_parts() -> None:
    from typing import get_args

    from sightline.nn.decoders import DECODERS
    from sightline.recipes import config
    from sightline.tokenizers import TOKENIZERS
    from sightline.training.objectives import OBJECTIVES

    def names(union) -> set[str]:
        sections = get_args(get_args(union)[0])
        return {name for section in sections for name in get_args(section.model_fields["name"].annotation)}

    assert names(config.Decoder) == set(DECODERS)
    assert names(config.Objective) == set(OBJECTIVES)
    assert set(get_args(config.TokenizerSection.model_fields["name"].annotation)) == set(TOKENIZERS)


def recipes() -> list[Path]:
    return sorted((PACKAGE / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", recipes(), ids=lambda path: path.stem)
def test_a_recipe_parses_and_opens_with_the_command_that_trains_it(path: Path) -> None:
    import shlex

    from sightline.recipes.config import load_recipe

    command = shlex.split(path.read_text(encoding="utf-8").splitlines()[0])
    assert command[:4] == ["#", "sightline", "train", path.stem]
    options = command[4:]
    while options[:1] == ["--data"]:
        assert options[1] in ("flickr8k/", "coco/", "my-captions.csv")
        options = options[2:]
    assert len(options) < len(command) - 4, "it names its data"
    assert options[::2] == ["--set"] * (len(options) // 2), "only --set may follow"
    assert load_recipe(path.stem, options[1::2]).title


def test_every_system_of_the_plan_has_its_recipe() -> None:
    systems = {"nic-resnet50", "clip-transformer", "clip-glove", "sat-hard-vgg19", "distilled", "dinov2-transformer"}
    systems |= {f"patch-transformer-{text}" for text in ("char", "word", "bpe")}
    systems |= {
        f"sat-soft-{network}" for network in ("alexnet", "googlenet", "vgg16", "vgg19", "vgg19-paper", "resnet152")
    }
    assert systems <= {path.stem for path in recipes()}
