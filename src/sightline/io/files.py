"""Files on disk: which images a user means, and writing so that a crash never leaves half a file behind."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sightline.errors import DataError
from sightline.types import Failure

# fmt: off
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff",
    ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx", ".avif", ".avifs", ".heic", ".heif", ".mpo", ".apng",
})
# fmt: on

TEMPORARY = re.compile(r"(?:^|(?<=[/\\]))\.[0-9a-f]{8}\.(?=[^/\\]+$)")  # begins the name of a temporary file


@dataclass(frozen=True)
class FileSlice:
    """A byte range of a file, such as a photo in a tar shard; ``name`` is how it is shown to people."""

    path: str
    offset: int
    size: int
    name: str

    def read(self, most: int) -> bytes:
        """At most ``most`` of its bytes; fewer than ``size`` where the file around it is truncated."""
        with Path(self.path).open("rb") as file:
            file.seek(self.offset)
            return file.read(min(self.size, most))

    def __str__(self) -> str:
        return self.name


def byte_count(file: Path | FileSlice) -> int:
    return file.size if isinstance(file, FileSlice) else file.stat().st_size


def content_digest(file: Path | FileSlice) -> bytes:
    """SHA-256 of a photo's bytes: what it is, wherever it lies."""
    if isinstance(file, FileSlice):
        return hashlib.sha256(file.read(file.size)).digest()
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def is_image_path(path: str | Path) -> bool:
    """Whether the name looks like a picture's; the file itself is not opened."""
    return Path(path).suffix.lower() in IMAGE_SUFFIXES


def printable(text: object) -> str:
    """A name as one line of text, whatever characters it holds."""
    name = str(text)
    return name if name.isprintable() else ascii(name)


def counted(number: int, thing: str) -> str:
    """How many of a thing there are: "1 photo", "2,000 photos"."""
    return f"{number:,} {thing}" + ("" if number == 1 else "es" if thing.endswith("tch") else "s")


def user_path(path: str | os.PathLike[str]) -> Path:
    """``~/x`` in the user's home, as a shell has it: ~nobody/x is a name like any other."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 -- Path.expanduser raises where there is no such user


def local_path(source: str | os.PathLike[str]) -> Path:
    """A path from what a user typed: a plain path, ``~/…`` or a ``file://`` URL; ValueError for any other URL."""
    text = os.fspath(source)
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme.isalnum():
        return user_path(text)
    if scheme.lower() in {"http", "https", "ftp"}:
        raise ValueError("is a web address, and nothing is fetched from the web: download it and name the file")
    host, slash, path = rest.partition("/")
    if scheme.lower() != "file" or host not in {"", "localhost"}:
        raise ValueError("is not a file on this machine: name a path")
    from urllib.request import url2pathname

    return Path(url2pathname(slash + path))


def path_in_table(name: str | os.PathLike[str], table: Path) -> Path:
    """The file that a table names: from the working directory, or else beside the table if it is only there."""
    path, beside = local_path(name), table.parent / local_path(name)  # which are one where the name is absolute
    is_beside = path != beside and not os.path.exists(path) and os.path.exists(beside)  # noqa: PTH110 -- any text
    return beside if is_beside else path


@dataclass
class SkippedFiles:
    """What was passed over in folders: files whose names do not end like a photo's, and links to other folders."""

    names: list[str] = field(default_factory=list)  # the first few
    count: int = 0
    folders: list[str] = field(default_factory=list)
    folder_count: int = 0

    def __bool__(self) -> bool:
        return bool(self.count or self.folder_count)

    def add(self, path: str | Path, folder: str | Path = "") -> None:
        """Count a file; it is named relative to ``folder``, where one was searched."""
        self.count += 1
        if len(self.names) < 3:
            self.names.append(printable(os.path.relpath(path, folder) if folder else Path(path).name))

    def add_folder(self, path: str | Path) -> None:
        self.folder_count += 1
        if len(self.folders) < 3:
            self.folders.append(printable(path))

    def __str__(self) -> str:
        """ "skipped 5 files that are not photos: notes.txt, clip.mov, song.mp3 and 2 more"."""
        verb = "is not a photo" if self.count == 1 else "are not photos"
        links = counted(self.folder_count, "link") + (" to a folder" if self.folder_count == 1 else " to folders")
        parts = (
            (f"{counted(self.count, 'file')} that {verb}", self.names, self.count),
            (f"{links}, name them to include them", self.folders, self.folder_count),
        )
        shown = [
            f"{what}: {', '.join(names)}" + (f" and {count - len(names):,} more" if count > len(names) else "")
            for what, names, count in parts
            if count
        ]
        return f"skipped {'; '.join(shown)}"


def walk_files(
    folder: str | Path,
    suffixes: frozenset[str],
    unreadable: list[OSError],
    skipped: SkippedFiles | None = None,
    leave_out: Sequence[Path] = (),
) -> Iterator[str]:
    """Every file with one of these suffixes under a folder, sorted; hidden names and ``leave_out`` are passed over."""
    for parent, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__MACOSX")) and not (leave_out and Path(parent, name).resolve() in leave_out)
        )
        if skipped is not None:
            for name in folders:
                if (linked := Path(parent, name)).is_symlink():  # may lead back here, so it is not followed
                    skipped.add_folder(linked)
        for name in sorted(names):
            if name.startswith("."):
                continue
            if os.path.splitext(name)[1].lower() in suffixes:  # noqa: PTH122 -- the same
                yield os.path.join(parent, name)  # noqa: PTH118 -- Path takes ten times as long
            elif skipped is not None:
                skipped.add(Path(parent, name), folder)


def walk_images(
    folder: Path, unreadable: list[Failure] | None = None, skipped: SkippedFiles | None = None
) -> Iterator[Path]:
    """Every image under a folder, sorted, hidden names left out; folders that cannot be listed go to ``unreadable``."""
    errors: list[OSError] = []
    yield from map(Path, walk_files(folder, IMAGE_SUFFIXES, errors, skipped))
    if unreadable is not None:
        unreadable += [Failure(printable(error.filename), f"cannot be listed: {error.strerror}") for error in errors]


def find_images(inputs: Sequence[str | Path], skipped: SkippedFiles | None = None) -> Iterator[Path | Failure]:
    """Each image once, from files, folders (recursive), glob patterns and ``file://`` URLs, in the order given.

    What cannot be found comes as a `Failure` among the paths, so that a caller reports it and goes on. Other files in
    the folders are counted in ``skipped``.
    """
    found_before: set[Path] = set()
    for source in inputs:
        for found in _expand(source, skipped):
            if isinstance(found, Failure):
                yield found
            elif found not in found_before:
                found_before.add(found)
                yield found


def _expand(source: str | Path, skipped: SkippedFiles | None) -> Iterator[Path | Failure]:
    try:
        path = local_path(source)
        if path.is_dir():
            yield from _expand_folder(path, skipped)
        elif path.exists():
            yield path
        elif any(mark in str(path) for mark in "*?["):
            yield from _expand_pattern(str(path), skipped)
        else:
            yield Failure(printable(source), "does not exist: check the path")
    except ValueError as error:
        yield Failure(printable(source), str(error))
    except OSError as error:
        yield Failure(printable(source), f"cannot be read: {error.strerror}")


def _expand_folder(folder: Path, skipped: SkippedFiles | None) -> Iterator[Path | Failure]:
    unreadable: list[Failure] = []
    empty = True
    for path in walk_images(folder, unreadable, skipped):
        empty = False
        yield path
    yield from unreadable
    if empty and not unreadable:
        yield Failure(printable(folder), "is a folder without images: name another one")


def _expand_pattern(pattern: str, skipped: SkippedFiles | None) -> Iterator[Path | Failure]:
    empty = True
    for name in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 -- Path.glob refuses absolute patterns
        path = Path(name)
        if path.is_dir():
            images = walk_images(path, skipped=skipped)
        else:
            images = iter([path] if is_image_path(path) else [])
            if skipped is not None and not is_image_path(path):
                skipped.add(path)
        for image in images:
            empty = False
            yield image
    if empty:
        yield Failure(printable(pattern), "matches no image: check the pattern")


def sidecar_of(image: Path, shared_names: Container[str] = ()) -> Path:
    """The text file next to a photo: ``dog.txt``, or ``dog.jpg.txt`` where other photos are called dog, too."""
    return image.with_name(f"{image.name}.txt") if image.stem.casefold() in shared_names else image.with_suffix(".txt")


@lru_cache(maxsize=64)
def shared_stems(folder: Path) -> frozenset[str]:
    """Names, without suffix and in lower case, that several photos of a folder have: ``dog.jpg`` and ``dog.png``."""
    stems, shared = set[str](), set[str]()
    for name in os.listdir(folder):  # noqa: PTH208 -- names alone
        stem, suffix = os.path.splitext(name)  # noqa: PTH122
        if suffix.lower() in IMAGE_SUFFIXES:
            (shared if stem.casefold() in stems else stems).add(stem.casefold())
    return frozenset(shared)


def cache_folder() -> Path:
    """Where files that can be made again are kept: $SIGHTLINE_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("SIGHTLINE_CACHE"):
        return user_path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"


def models_folder() -> Path:
    """Where models from the hub are kept: $SIGHTLINE_MODELS, else the user's data folder."""
    if chosen := os.environ.get("SIGHTLINE_MODELS"):
        return user_path(chosen)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sightline" / "models"


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """What the system refuses inside becomes one `DataError`: ``path`` cannot be written, why, and what to do."""
    try:
        yield
    except OSError as error:
        target = TEMPORARY.sub("", str(path))  # an `atomic_path` within another: the file that the user will get
        raise DataError(f"cannot write {printable(target)}: {cause(error)}") from error


def make_folder(folder: Path) -> None:
    """Make the folder of an output, and those above it, where they are missing; `OSError` says what is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        raise NotADirectoryError(error.errno, f"{printable(there)} is a file, not a folder") from None


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path next to ``path`` to write to; it replaces ``path`` only once all is safely on disk.

    >>> with atomic_path("model.safetensors") as temporary:
    ...     save_file(tensors, temporary)
    """
    with writing(path):
        target = Path(path).resolve()  # a link stays a link
        if target.exists() and not target.is_file():
            raise DataError(f"cannot write {printable(path)}: it is not a regular file; choose another name")
        make_folder(target.parent)
        temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name[-100:]}")
        try:
            yield temporary
            _flush(temporary)
            temporary.replace(target)
            if os.name == "posix":
                _flush(target.parent)
        finally:
            with suppress(OSError):  # a read-only disk refuses even this, and would hide the reason
                temporary.unlink()


def leftovers(path: str | Path) -> list[Path]:
    """Temporary files next to ``path`` that runs killed while writing it left behind."""
    target = Path(path).resolve()
    return list(target.parent.glob(f".????????.{glob.escape(target.name[-100:])}"))


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """The whole content or, if anything goes wrong, the file as it was before. Text is UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def keep_backup(path: Path) -> Path:
    """Keep a file that is about to be replaced as ``NAME.bak``, or ``NAME.bak2`` and so on if that exists."""
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.bak{number if number > 1 else ''}")
        try:
            os.link(path, backup)
            return backup
        except FileExistsError:
            number += 1
        except OSError:  # a file system without links
            if not backup.exists():
                with atomic_path(backup) as temporary:
                    shutil.copy2(path, temporary)
                return backup
            number += 1


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A new folder next to ``path`` to fill; it replaces ``path`` as a whole, or not at all.

    The two exchange their names in one step. Where the system cannot do that, a run killed between two renames leaves
    the earlier folder as ``….old``, and the next one puts it back.
    """
    target = Path(path)
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name[-100:]}")
    old = temporary.with_name(f"{temporary.name}.old")
    with writing(path):
        try:
            make_folder(target.parent)
            temporary.mkdir()
            for earlier in target.parent.glob(f".????????.{glob.escape(target.name[-100:])}.old"):
                if not target.exists():
                    earlier.replace(target)
            yield temporary
            for file in temporary.iterdir():
                _flush(file)
            if not target.exists():
                temporary.replace(target)
            elif not _exchange(temporary, target):
                target.replace(old)
                temporary.replace(target)
        finally:
            if old.exists() and not target.exists():  # also after an interrupt between the two
                old.replace(target)
            for rest in (temporary, old):
                shutil.rmtree(rest, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step, as Linux can; False where the system or its file system cannot."""
    import ctypes

    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cause(error: OSError) -> str:
    """Why the system refused to write something, and what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full; free some space or choose another folder"
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return "the folder is not writable; choose another one"
    reason = error.args[0][0][-1] if isinstance(error, shutil.Error) else error.strerror or error  # of the first file
    return f"{reason}; choose another name or folder"
