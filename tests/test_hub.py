"""Models from and to the hub: only named files, size checked, offline from the cache; all against a fake of its API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from bulking import in_child, kill_at_operation, was_killed
from fake_hub import TOKEN, FakeHub, serve

import sightline
from sightline.errors import CheckpointError, ConfigError, DataError
from sightline.io.files import atomic_folder, models_folder
from sightline.nn import hub as hub_module
from sightline.nn.hub import resolve
from sightline.recipes.plans import Paths, load_plans

NAME = "somebody/words"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub without any model; the client knows no other, and its cache is empty."""
    from huggingface_hub import constants

    with serve() as fake:
        monkeypatch.setattr(constants, "ENDPOINT", fake.address)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("/{repo_id}")
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.address + "".join(template[1:]))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "")
        monkeypatch.setenv("SIGHTLINE_MODELS", str(tmp_path / "models"))
        yield fake


@pytest.fixture
def published(hub: FakeHub, tiny_model: Path) -> FakeHub:
    """A hub with one model, and files beside it that nobody should want."""
    hub.repos[NAME] = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    hub.repos[NAME] |= {"model.bin": b"a pickle", "train.py": b"import os", "sub/config.json": b"{}", "big.json": b"{}"}
    return hub


def test_loading_keeps_the_named_files_and_no_others(published: FakeHub, tiny_model: Path) -> None:
    checkpoint = hub_module.load_from_hub(NAME)
    assert checkpoint.folder == models_folder() / "somebody" / "words"
    names = {path.name for path in checkpoint.folder.iterdir()}
    assert names == {path.name for path in tiny_model.iterdir()}
    assert published.fetched() == sorted(names)
    assert list(checkpoint.folder.parent.iterdir()) == [checkpoint.folder], "nothing temporary stays"


def test_a_loaded_model_is_used_without_asking_the_hub(published: FakeHub, tiny_model: Path) -> None:
    hub_module.load_from_hub(NAME)
    asked = len(published.asked)
    assert resolve(NAME) == models_folder() / NAME
    assert sightline.load(NAME).tokenizer.to_json() == sightline.load(tiny_model).tokenizer.to_json()
    assert len(published.asked) == asked


ABSENT = "its weights are not part of the repository"


@pytest.mark.parametrize(
    ("name", "what", "weights", "verb"),
    [
        ("sat-soft-vgg19", "recipe", ABSENT, "reproduce"),
        ("own-photos", "recipe", ABSENT, "train"),
        ("coco/sat-soft-vgg19", "row of the results", ABSENT, "reproduce"),
        ("dinov2-coco-words", "recipe", "in int8 it is the model 'default'", "reproduce"),
        ("coco/clip-coco-long", "row of the results", "in int8 it is the model 'large'", "reproduce"),
    ],
)
def test_a_recipe_or_row_named_as_a_model_says_how_to_train_it(
    hub: FakeHub, name: str, what: str, weights: str, verb: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        sightline.load(name)
    assert str(caught.value) == f"{name} is a {what}, not a model; {weights}: `sightline {verb} {name}` trains it"
    assert not hub.asked


def test_a_model_folder_called_like_a_recipe_or_row_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sat-soft-vgg19", "coco/clip-coco"):
        shutil.copytree(tiny_model, name)
        assert resolve(name) == Path(name)


@pytest.mark.skipif(not (hub_module.CLONE / "large").is_dir(), reason="the large model is not in this copy")
def test_the_models_made_of_stages_are_those_of_the_recipes() -> None:
    """A model's own recipe.toml has the title of the recipe that its stage is trained with."""
    stages = load_plans().stages
    for stage, model in hub_module.IN_INT8.items():
        recipe = tomllib.loads((resolve(model) / "recipe.toml").read_text(encoding="utf-8"))
        assert recipe["title"] == stages[stage].resolved(Paths()).title


def test_a_hub_name_alone_is_fetched_into_the_clients_cache(published: FakeHub, tmp_path: Path) -> None:
    folder = resolve(NAME)
    assert folder.is_relative_to(tmp_path / "cache")
    assert not (models_folder() / NAME).exists()
    asked = len(published.asked)
    resolve(NAME)
    assert not any("/resolve/" in line for line in published.asked[asked:]), "fetched once, asked about again"


def test_without_a_network_the_cache_serves(published: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    folder = resolve(NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert resolve(NAME) == folder
    with pytest.raises(
        CheckpointError, match=r"somebody/other is neither a folder here nor a model on the hub that can be"
    ):
        resolve("somebody/other")


def test_offline_mode_serves_from_the_cache_and_asks_nobody(
    published: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    folder = resolve(NAME)
    asked = len(published.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve(NAME) == folder
    assert hub_module.load_from_hub(NAME).folder == models_folder() / NAME
    assert len(published.asked) == asked


def test_loading_again_replaces_the_older_copy(published: FakeHub) -> None:
    folder = hub_module.load_from_hub(NAME).folder
    assert folder is not None
    assert (folder / "recipe.toml").is_file()
    del published.repos[NAME]["recipe.toml"]
    published.repos[NAME]["metrics.json"] = b'{"dev": {"cider": 0.5}}'
    assert hub_module.load_from_hub(NAME).metrics == {"dev": {"cider": 0.5}}
    assert not (folder / "recipe.toml").exists()


def test_a_damaged_model_is_refused_and_the_older_copy_stays(published: FakeHub) -> None:
    folder = hub_module.load_from_hub(NAME).folder
    assert folder is not None
    before = (folder / "tokenizer.json").read_bytes()
    published.repos[NAME]["tokenizer.json"] = before.replace(b"a", b"b")
    with pytest.raises(CheckpointError):
        hub_module.load_from_hub(NAME)
    assert (folder / "tokenizer.json").read_bytes() == before


def test_files_too_large_are_refused_before_any_is_fetched(published: FakeHub) -> None:
    published.lies["model.safetensors"] = 5 * 2**30
    with pytest.raises(
        CheckpointError, match=r"somebody/words: model.safetensors has 5,120 MB, more than the 4,096 MB"
    ):
        hub_module.fetch(NAME)
    assert published.fetched() == []


def test_files_larger_than_the_hub_said_are_refused(published: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hub_module.LARGEST, ".toml", 5)
    published.lies["recipe.toml"] = 4
    with pytest.raises(CheckpointError):
        hub_module.fetch(NAME)


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (
            lambda hub: hub.repos.clear(),
            CheckpointError,
            "there is no model somebody/words on the hub, or it is private",
        ),
        (lambda hub: hub.gated.add(NAME), CheckpointError, "wants its terms accepted first"),
        (lambda hub: hub.repos[NAME].pop("config.json"), CheckpointError, "not a Sightline model: config.json missing"),
    ],
    ids=["missing", "gated", "another library's"],
)
def test_the_hubs_refusals_are_one_line(published: FakeHub, spoil, error: type[Exception], words: str) -> None:
    spoil(published)
    with pytest.raises(error, match=words) as raised:
        hub_module.fetch(NAME)
    assert "\n" not in str(raised.value)
    assert published.fetched() == []


def test_a_revision_that_is_not_there_is_one_line(published: FakeHub) -> None:
    assert hub_module.fetch(NAME, published.sha(NAME)).name == published.sha(NAME)
    with pytest.raises(CheckpointError, match="somebody/words has no revision 'v9'"):
        hub_module.fetch(NAME, "v9")


@pytest.mark.parametrize("name", ["words", "a/b/c", "../words", "a/..b", "/words", "a /b", "a/b\n", "-a/b"])
def test_what_is_no_hub_name_is_never_asked_for(hub: FakeHub, name: str) -> None:
    assert not hub_module.is_hub_name(name)
    with pytest.raises(ConfigError, match="not a hub name: write owner/model"):
        hub_module.fetch(name)
    assert hub.asked == []


def test_a_model_may_not_name_weights_outside_its_folder(published: FakeHub) -> None:
    config = json.loads(published.repos[NAME]["config.json"])
    for key, value in (("weights", "/etc/passwd"), ("options", {"checkpoint_path": "x.pth"})):
        changed = {**config, "encoder": {**config["encoder"], key: value}}
        published.repos[NAME]["config.json"] = json.dumps(changed).encode()
        with pytest.raises(CheckpointError, match="is not allowed here: a model folder has its own weights"):
            hub_module.load_from_hub(NAME)


def test_pushing_uploads_the_model_with_its_card_and_nothing_else(
    hub: FakeHub, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = shutil.copytree(tiny_model, tmp_path / "mine")
    (folder / "trainer.pt").write_bytes(b"state")
    (folder / "recipe.toml").write_text('[encoder]\nweights = "/home/me/secret/w.safetensors"\ntitle = "a / b"\n')
    pushed = hub_module.push(folder, "me/words", private=True)
    assert pushed.address == f"{hub.address}/me/words/commit/{hub.sha('me/words')}"
    assert hub.private == {"me/words"}
    there = hub.repos["me/words"]
    assert set(there) == {path.name for path in tiny_model.iterdir()} | {"README.md"}
    assert there["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert there["recipe.toml"].decode() == '[encoder]\nweights = "w.safetensors"\ntitle = "a / b"\n'
    card = there["README.md"].decode()
    assert card.startswith("---\nlibrary_name: sightline\n")
    assert 'sightline.load("me/words")' in card
    assert hub.cards == [card], "the hub was asked whether the card is fine"


def test_what_was_pushed_can_be_loaded(hub: FakeHub, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub_module.push(tiny_model, "me/words")
    checkpoint = hub_module.load_from_hub("me/words")
    assert checkpoint.folder is not None
    assert (checkpoint.folder / "model.safetensors").read_bytes() == (tiny_model / "model.safetensors").read_bytes()


def test_a_folders_own_card_is_kept_and_gets_the_hubs_header(tiny_model: Path, tmp_path: Path) -> None:
    from sightline.nn.checkpoint import load_checkpoint

    folder = shutil.copytree(tiny_model, tmp_path / "mine")
    (folder / "README.md").write_text("# Mine\n")
    assert hub_module.card(load_checkpoint(folder), "me/words") == hub_module.HEADER + "# Mine\n"
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    assert hub_module.card(load_checkpoint(folder), "me/words") == "---\nlicense: mit\n---\n# Mine\n"


def test_pushing_without_an_account_or_to_anothers_says_what_to_do(
    hub: FakeHub, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError, match=r"me/words cannot be written without an account: log in with `hf auth login`"
    ):
        hub_module.push(tiny_model, "me/words")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match="somebody-else/words is not yours to write"):
        hub_module.push(tiny_model, "somebody-else/words")
    broken = shutil.copytree(tiny_model, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError):
        hub_module.push(broken, "me/words")
    assert hub.repos == {}


def test_the_command_loads_and_lists_in_a_real_process(published: FakeHub, tmp_path: Path) -> None:
    """One pointed to the fake by the client's own environment variables only."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(sightline.__file__).parents[1]),
        "HF_ENDPOINT": published.address,
        "HF_HOME": str(tmp_path / "home"),
    }
    script = f"from sightline.cli import run\nraise SystemExit(run(['load', {NAME!r}]) or run(['models']))"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    loaded, *table = answer.stdout.splitlines()
    assert loaded.startswith("somebody/words: ")
    assert loaded.endswith(f"in {tmp_path / 'models' / 'somebody' / 'words'}")
    assert any(line.startswith("somebody/words ") and " no " in line for line in table)
    assert published.fetched()


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
def test_a_folder_survives_a_kill_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr("sightline.io.files._exchange", lambda first, second: False)

    def replace_folder(number: int, target: Path) -> None:
        kill_at_operation(number, target)
        with atomic_folder(target) as temporary:
            (temporary / "file").write_text("new")

    missing = 0
    for number in range(1, 50):
        target = tmp_path / str(number) / "model"
        with atomic_folder(target) as temporary:
            (temporary / "file").write_text("old")
        killed = was_killed(in_child(lambda number=number, target=target: replace_folder(number, target)))
        missing += not target.exists()
        with pytest.raises(KeyError), atomic_folder(target):
            raise KeyError  # a later run that fails
        assert (target / "file").read_text() in ("old", "new")
        if not killed:
            break
    assert number > 3 and (target / "file").read_text() == "new"
    assert missing == (0 if exchange else 1)


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with atomic_folder(target) as temporary:
        (temporary / "file").write_text("old")
    with pytest.raises(KeyError), atomic_folder(target) as temporary:
        (temporary / "file").write_text("new")
        raise KeyError
    assert (target / "file").read_text() == "old"
    with atomic_folder(target) as temporary:
        (temporary / "other").write_text("new")
    assert [path.name for path in target.iterdir()] == ["other"]
    assert [path.name for path in target.parent.iterdir()] == ["b"]
    blocked = tmp_path / "a" / "b" / "other" / "c"
    with pytest.raises(DataError, match="cannot write"), atomic_folder(blocked):
        pass
