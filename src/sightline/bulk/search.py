"""Finding photos by their captions, ranked by BM25 (Robertson and Zaragoza, 2009, section 3).

Words are compared by METEOR's stems, and irregular plurals by their singular, so that "running dogs" finds "a dog runs"
and "man" finds "two men".
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from sightline.bulk.job_folder import BulkOutput, absolute
from sightline.bulk.outputs import to_unicode
from sightline.bulk.watch import watch
from sightline.data import tables
from sightline.data.shards import list_shard
from sightline.data.tables import TABLES
from sightline.engine.captioner import Captioner
from sightline.errors import ConfigError, DataError
from sightline.evaluation.metrics.snowball import stem
from sightline.io.files import cache_folder, counted, local_path, path_in_table, printable
from sightline.io.html import PHOTO_GRID, render_html, thumbnail
from sightline.tokenizers.content_words import IRREGULAR_PLURALS
from sightline.types import UNSURE, Caption

K1, B = 1.2, 0.75  # of BM25: how much repeated words add, and how much long captions lose
# Words that nearly every caption has; they are searched for only where a query has no other.
# fmt: off
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "her", "his", "in", "into", "is",
    "it", "its", "of", "on", "onto", "or", "over", "some", "that", "the", "their", "there", "this", "through", "to",
    "while", "who", "with",
})
# fmt: on
STYLE = """
.found { padding-bottom: 4rem; }
.found h1 { margin-bottom: 1.6rem; }
"""


@dataclass(frozen=True)
class FoundCaption:
    """A row of a table of captions; a search adds its BM25 score, higher for a better match."""

    source: str
    text: str
    unsure: bool = False
    score: float = 0.0

    def sentence(self) -> str:
        """For a person to read, as a caption's."""
        return Caption(to_unicode(self.text), (), 0.0, unsure=self.unsure).sentence()


def search(query: str, table: str | Path, limit: int = 20) -> list[FoundCaption]:
    """The photos of a table whose captions match best, best first; each photo once; at equal score, unsure ones last.

    A caption matches if it has any of the query's words, in any form; words in double quotes must follow each other.
    ``table`` is a file of captions, or the folder of a bulk job.
    """
    phrases = query_phrases(query)
    matches: list[FoundCaption] = []
    counts: list[list[int]] = []  # of each phrase in each match
    lengths: list[int] = []  # of the matches, in words
    captions = words = 0
    for row in read_captions(Path(table)):
        text = stems(row.text)
        length = text.count(" ") + 1
        captions, words = captions + 1, words + length
        own = [len(re.findall(rf"\b{phrase}\b", text)) for phrase in phrases]
        if any(own):
            matches.append(row)
            counts.append(own)
            lengths.append(length)
    if not captions:
        raise DataError(f"{printable(table)} holds no caption: name a table with columns such as source and caption")
    if not matches:
        return []
    scores = bm25(np.array(counts), np.array(lengths), captions, words / captions)
    found: dict[str, FoundCaption] = {}
    for row, score in sorted(zip(matches, scores.tolist()), key=lambda match: (-match[1], match[0].unsure)):
        found.setdefault(row.source, replace(row, score=score))
        if len(found) == limit:
            break
    return list(found.values())


def bm25(counts: np.ndarray, lengths: np.ndarray, captions: int, mean_length: float) -> np.ndarray:
    """The scores (R,) of captions by how often they have each phrase (R, P) and by their lengths (R,) in words.

    A phrase that n of N captions have weighs ln(1 + N/n). The paper's ln((N − n + 0.5) / (n + 0.5)) is negative where
    more than half have it, as in a table of few captions.
    """
    weights = np.log(1 + captions / np.maximum((counts > 0).sum(0), 1))  # (P,)
    norms = K1 * (1 - B + B * lengths / mean_length)  # (R,)
    return (weights * counts * (K1 + 1) / (counts + norms[:, None])).sum(1)


def query_phrases(query: str) -> list[str]:
    """The words of a query, and its phrases in double quotes, in the form of `stems`."""
    pieces = [phrase or word for phrase, word in re.findall(r'"([^"]*)"|([\w\'’-]+)', query)]
    phrases = [piece for piece in pieces if stems(piece)]
    if not phrases:
        raise ConfigError(f"the query {query!r} has no word to search for: write a few, such as dog beach")
    return [stems(phrase) for phrase in phrases if phrase.lower() not in STOP_WORDS] or [*map(stems, phrases)]


def stems(text: str) -> str:
    """The words of a caption or a query as they are compared, with spaces between them: without case and accents."""
    letters = (letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    words = re.findall(r"[^\W_]+", "".join(letters).lower())
    return " ".join(stem(IRREGULAR_PLURALS.get(word, word)) for word in words)


# -- tables -----------------------------------------------------------------------------------------------------------


def caption_folder(folder: str, captioner: Captioner) -> Path:
    """Caption a folder's photos into a table in the cache, those that it does not have yet; returns the table.

    The table names photos by their absolute path, as it is the same whatever the working directory; see `as_given`.
    """
    root = absolute(str(local_path(folder)))
    parts = [root, *captioner.signatures()]
    name = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    table = cache_folder() / "search" / name / "captions.jsonl"
    output = BulkOutput(table, "jsonl", False)
    watch(root, output, captioner, once=True, announce=False, name=lambda path: printable(as_given(path, folder)))
    if not table.stat().st_size:
        raise DataError(f"{printable(folder)} has no photo that can be captioned: name another folder")
    return table


def as_given(path: str, folder: str) -> str:
    """A path in a folder, beginning with the folder as the user named it: "photos/dog.jpg"."""
    given = local_path(folder)
    below, root = to_unicode(path), to_unicode(absolute(str(given)))
    return to_unicode(str(given / Path(below).relative_to(root))) if Path(below).is_relative_to(root) else path


def find_table(source: str) -> Path | None:
    """The table of captions that a user named: a file, or a bulk job's folder. None: a folder of photos."""
    try:
        path = local_path(source)
    except ValueError as error:
        raise DataError(f"{printable(source)} {error}") from None
    if path.is_dir():
        return path if (path / "_job.json").is_file() else None
    if not path.exists():
        raise DataError(f"{printable(source)} does not exist: name a table of captions, or a folder of photos")
    if path.suffix.lower() not in TABLES:
        raise ConfigError(f"{printable(source)} is no table of captions: give one of {', '.join(TABLES)}, or a folder")
    return path


def read_captions(table: Path) -> Iterator[FoundCaption]:
    """The captions of a table, or of all parts of a bulk job's folder; rows without a caption are left out."""
    for source, text, row in tables.read_captions(table):
        yield FoundCaption(source, text, row.get(UNSURE) in (True, "true"))


# -- the page ---------------------------------------------------------------------------------------------------------


def render_page(query: str, found: Sequence[FoundCaption], table: Path, page: Path) -> str:
    """The photos that were found, with their captions, for the file `page`; `path_in_table` says where they are."""
    figures = "".join(_figure(one, table, page) for one in found)
    body = (
        f'<div class="found">\n<h1>{escape(to_unicode(query))}</h1>\n'
        f'<p class="quiet">{counted(len(found), "photo")}, best match first</p>\n'
        f'<div class="photos">\n{figures}</div>\n</div>\n'
    )
    return render_html(to_unicode(query), body, STYLE + PHOTO_GRID)


def _figure(found: FoundCaption, table: Path, page: Path) -> str:
    photo = _photo(found.source, table)
    picture = "" if photo is None else thumbnail(photo, found.sentence())
    name = escape(printable(found.source))
    if isinstance(photo, Path) and os.path.isfile(photo):  # noqa: PTH113 -- any text
        url = escape(_url(photo, page, local_path(found.source).is_absolute()))
        picture, name = (f'<a href="{url}">{content}</a>' if content else "" for content in (picture, name))
    return (
        f"<figure>{picture}<figcaption>"
        f'<p class="caption">{escape(found.sentence())}</p>'
        f'<p class="quiet">{name} · score {found.score:.2f}</p></figcaption></figure>\n'
    )


def _url(photo: Path, page: Path, is_absolute: bool) -> str:
    """A link to a photo that is as absolute as its name in the table: page, table and photos can be moved together."""
    if not is_absolute:
        with suppress(ValueError):  # no relative path leads to another drive
            return quote(Path(os.path.relpath(photo, page.parent)).as_posix())
    return Path(absolute(str(photo))).as_uri()


def _photo(source: str, table: Path) -> Any:
    """The file of a photo, or its byte range in a shard; None: the name is no file's, such as a web address."""
    shard, is_member, _ = source.partition("::")
    try:
        path = path_in_table(shard, table)
    except ValueError:
        return None
    if is_member and path.is_file():
        member = source.removeprefix(shard)
        return next((file for file in list_shard(path)[0] if file.name == f"{path}{member}"), path)
    return path
