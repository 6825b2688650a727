"""Models on the Hugging Face hub, fetched and pushed through its own client, which also keeps the tokens.

A model folder is tensors, graphs, JSON and TOML. Only files of these names are fetched, their sizes are checked before
and after, and nothing in them is ever executed. What was fetched once is found again without a network.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline import __version__
from sightline.errors import CheckpointError, ConfigError, SightlineError, nearest, require
from sightline.io.files import atomic_folder, models_folder, printable, user_path
from sightline.io.model_files import LARGEST_JSON, WEIGHTS, read_weights, shards

if TYPE_CHECKING:
    from sightline.nn.checkpoint import Checkpoint

NEEDED = ("config.json", "tokenizer.json", WEIGHTS)
EXPORTED = ("sightline.json", "encoder.onnx", "start.onnx", "step.onnx")
FILES = (*NEEDED, "confidence.json", "metrics.json", "recipe.toml", "README.md", *EXPORTED)
LARGEST = {".safetensors": 4 * 2**30, ".onnx": 2**31, ".json": LARGEST_JSON, ".toml": 2**20, ".md": 2**20}
SHIPPED = Path(__file__).parents[1] / "pretrained"
DEFAULT_MODEL = SHIPPED / "default"
CLONE = Path(__file__).parents[3] / "models"  # models of the repository that are not in the package; only in a clone
LARGE = "large"
IN_INT8 = {"dinov2-coco-words": DEFAULT_MODEL.name, "clip-coco-long": LARGE}  # training stages, and models made of them
LOG_IN = "log in with `hf auth login`"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Pushed:
    """Where a pushed model is to be found."""

    name: str
    address: str


def is_hub_name(name: str | Path) -> bool:
    """Whether this could be ``owner/model``."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and ".." not in name


def kept(name: str) -> Path:
    """Where `sightline load` keeps a hub model."""
    return models_folder() / name


def fetch(name: str, revision: str | None = None) -> Path:
    """A hub model's folder in the client's own cache, downloaded if need be; without a network what lies there."""
    _check_name(name)
    require("hub", f"{printable(name)} is not a folder here, and fetching it from the hub")

    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    reason = None
    try:
        sizes = _sizes(name, revision)
        _check_files(name, sizes)
    except SightlineError:
        raise
    except HFValidationError as error:
        raise ConfigError(f"{printable(name)} is not a hub name: {str(error).splitlines()[0]}") from None
    except Exception as error:  # no network, offline mode: each version of the client raises its HTTP library's own
        reason = type(error).__name__
    try:
        offline = reason is not None
        found = snapshot_download(name, revision=revision, allow_patterns=list(FILES), local_files_only=offline)
    except Exception as error:
        problem = _hub_error(name, revision, error) or CheckpointError(
            f"{printable(name)} is neither a folder here nor a model on the hub that can be reached "
            f"({reason or type(error).__name__}); check the name and the network"
        )
        raise problem from None
    folder = Path(found)
    _check_files(name, {file: (folder / file).stat().st_size for file in FILES if (folder / file).is_file()})
    return folder


def model_size(folder: Path) -> int:
    """Bytes of a model's files on disk, without what its training run left beside them."""
    files = [*map(folder.joinpath, FILES), *shards(folder)]
    return sum(file.stat().st_size for file in files if file.is_file())


def resolve(name: str | Path) -> Path:
    """Where a model lies: a folder, a shipped model's name, or a hub name (``owner/model``), fetched if need be.

    `CheckpointError` where there is no such model.
    """
    path = user_path(name)
    if path.exists():
        return path
    if str(name) == LARGE:
        return _large()
    if (SHIPPED / path.name).is_dir() and str(name) == path.name:
        return SHIPPED / path.name
    if is_hub_name(name) and kept(str(name)).is_dir():
        return kept(str(name))
    _check_not_recipe(str(name))
    if is_hub_name(name):
        return fetch(str(name))
    if hint := nearest(str(name), (DEFAULT_MODEL.name, LARGE)):
        raise CheckpointError(f"there is no model folder {str(name)!r}{hint}: `sightline models` lists models")
    return path


def _check_not_recipe(name: str) -> None:
    """`CheckpointError` for the name of a recipe or of a row of the results: how to train the model."""
    from sightline.recipes.config import recipe_names
    from sightline.recipes.plans import load_plans

    row = load_plans().rows.get(name)
    models = row.models if row else ()
    is_recipe = name in recipe_names()
    if not (is_recipe or models):  # people are a row without a model
        return
    verb = "reproduce" if models else "train"
    shipped = next((IN_INT8[model] for model in models if len(models) == 1 and model in IN_INT8), None)
    weights = f"in int8 it is the model {shipped!r}" if shipped else "its weights are not part of the repository"
    what = "recipe" if is_recipe else "row of the results"
    raise CheckpointError(f"{name} is a {what}, not a model; {weights}: `sightline {verb} {name}` trains it")


def _large() -> Path:
    for folder in large_folders():
        if folder.is_dir():
            return folder
    kept = large_folders()[-1]
    raise CheckpointError(
        f"the large model (91 MB) is not in the package: copy the folder models/large of Sightline's repository to "
        f"{printable(kept)}, or give that folder (--model CLONE/models/large)"
    )


def large_folders() -> list[Path]:
    """Where the large model may lie: in the clone that runs, in the clone that is the working directory, or kept."""
    return [CLONE / LARGE, Path("models") / LARGE, models_folder() / LARGE]


def load_from_hub(name: str, revision: str | None = None) -> Checkpoint:
    """Fetch a model, see that it loads, and keep it among the local models; it replaces an older copy as a whole."""
    from sightline.nn.checkpoint import load_checkpoint

    source = fetch(name, revision)
    load_checkpoint(source)
    target = kept(name)
    with atomic_folder(target) as temporary:
        for file in FILES:
            if (source / file).is_file():
                shutil.copyfile(source / file, temporary / file)
    return load_checkpoint(target)


def push(folder: str | Path, name: str, private: bool = False, message: str | None = None) -> Pushed:
    """Upload a model folder with its card; the repository is made if it is not there."""
    require("hub", "publishing a model")

    from huggingface_hub import CommitOperationAdd, HfApi

    from sightline.nn.checkpoint import load_checkpoint

    _check_name(name)
    folder = Path(folder)
    checkpoint = load_checkpoint(folder)  # what cannot be loaded is not published
    contents: dict[str, bytes | str] = {file: str(folder / file) for file in FILES if (folder / file).is_file()}
    if shards(folder):
        contents[WEIGHTS] = read_weights(folder)
    contents["README.md"] = card(checkpoint, name).encode()
    if checkpoint.recipe:
        contents["recipe.toml"] = without_paths(checkpoint.recipe).encode()
    operations = [CommitOperationAdd(path_in_repo=file, path_or_fileobj=content) for file, content in contents.items()]
    api = HfApi(library_name="sightline", library_version=__version__)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        done: Any = api.create_commit(name, operations, commit_message=message or f"Sightline {__version__} model")
    except Exception as error:
        raise _push_error(name, error) from None
    return Pushed(name, str(done.commit_url))


def card(checkpoint: Checkpoint, name: str) -> str:
    """The folder's own README, or one made of what the folder knows; with the hub's header in either case."""
    readme = (checkpoint.folder or Path()) / "README.md"
    if readme.is_file():
        text = readme.read_text(encoding="utf-8", errors="replace")
        return text if text.startswith("---\n") else HEADER + text
    encoder, decoder = checkpoint.model.encoder, checkpoint.model.decoder
    rows = "".join(f"| {split} | {_scores(checkpoint.metrics.get(split))} |\n" for split in ("test", "dev"))
    every, _ = checkpoint.model.count()
    return (
        f"{HEADER}# {name.rpartition('/')[2]}\n\nCaptions for photos: encoder `{encoder.name}`, "
        f"decoder `{decoder.spec['name']}`, {every:,} parameters, {checkpoint.tokenizer.size:,} tokens.\n\n"
        f'```python\nimport sightline\n\nsightline.load("{name}").caption("photo.jpg")\n```\n\n'
        f"| split | B4 | METEOR | CIDEr-D |\n|---|---|---|---|\n{rows}\n"
        "Scores are those of its training record, ×100. The recipe is in `recipe.toml`.\n"
    )


HEADER = "---\nlibrary_name: sightline\npipeline_tag: image-to-text\ntags:\n- image-captioning\n- alt-text\n---\n"


def without_paths(recipe: str) -> str:
    """A recipe that names the files of this machine without the folders they lie in, which are nobody's business."""
    return re.sub(r'"(?:/|~|\\\\|[A-Za-z]:)[^"\n]*[/\\]([^"/\\\n]*)"', r'"\1"', recipe)


def _scores(found: Any) -> str:
    known = found if isinstance(found, dict) else {}
    values = [known.get(key) for key in ("bleu_4", "meteor", "cider")]
    return " | ".join(f"{100 * value:.1f}" if isinstance(value, int | float) else "–" for value in values)


def _check_name(name: str) -> None:
    if not is_hub_name(name):
        raise ConfigError(f"{printable(repr(name))} is not a hub name: write owner/model")


def _sizes(name: str, revision: str | None) -> dict[str, int]:
    """What the hub says its files weigh, before any is fetched."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="sightline", library_version=__version__)
    try:
        info = api.model_info(name, revision=revision, files_metadata=True, timeout=10)
    except Exception as error:
        if problem := _hub_error(name, revision, error):
            raise problem from None
        raise
    return {file.rfilename: file.size or 0 for file in info.siblings or () if file.rfilename in FILES}


def _check_files(name: str, sizes: dict[str, int]) -> None:
    if missing := [file for file in NEEDED if file not in sizes]:
        raise CheckpointError(f"{name} is not a Sightline model: {', '.join(missing)} missing there")
    for file, size in sizes.items():
        limit = LARGEST[Path(file).suffix]
        if size > limit:
            raise CheckpointError(f"{name}: {file} has {size >> 20:,} MB, more than the {limit >> 20:,} MB allowed")


def _hub_error(name: str, revision: str | None, error: Exception) -> CheckpointError | None:
    """The error that explains an answer of the hub; None where the hub gave no answer."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return CheckpointError(f"{name} wants its terms accepted first: do so on its page and {LOG_IN}")
    if isinstance(error, RepositoryNotFoundError):
        return CheckpointError(f"there is no model {name} on the hub, or it is private: check the name, or {LOG_IN}")
    if isinstance(error, RevisionNotFoundError):
        return CheckpointError(f"{name} has no revision {revision!r}: leave it out for the newest")
    return None


def _push_error(name: str, error: Exception) -> ConfigError:
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, LocalTokenNotFoundError) or status == 401:
        return ConfigError(f"{name} cannot be written without an account: {LOG_IN}")
    if status == 403:
        return ConfigError(f"{name} is not yours to write: choose your own name before the slash, or {LOG_IN}")
    if isinstance(error, HfHubHTTPError | ValueError):
        return ConfigError(f"the hub refused {name}: {str(error).splitlines()[0]}")
    return ConfigError(f"the hub cannot be reached ({type(error).__name__}); nothing was published")
