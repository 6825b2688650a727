"""The page that captions in the browser, built from ``web/``: where it lies, and a copy for any web server."""

from __future__ import annotations

import shutil
from pathlib import Path

from sightline.errors import ConfigError
from sightline.io.files import printable

BUILT = Path(__file__).parent / "page"
NOTE = "build.json"  # says what it was built from; only our page has one
BUILD = "cd web && npm ci && npm run build"


def is_built(page: Path = BUILT) -> bool:
    return (page / "index.html").is_file()


def copy_page(folder: Path, page: Path = BUILT) -> None:
    """The page into ``folder``, an older copy of it replaced; its model belongs into ``folder/model``."""
    if not is_built(page):
        raise ConfigError(f"the page is not built here: in a clone of the repository, {BUILD}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--web {printable(folder)} is a file: name a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / NOTE).is_file():
        raise ConfigError(f"--web {printable(folder)} holds other files: name a new folder")
    shutil.rmtree(folder / "assets", ignore_errors=True)  # names change with every build
    shutil.copytree(page, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model"))
