"""The HTML pages that Python writes: one file each, with ``page.css``, which the page in ``web/`` uses, too."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from string import Template

from PIL import Image

from sightline.errors import ImageError
from sightline.io.images import ImageSource, open_image

STYLESHEET = Path(__file__).with_name("page.css")
MARK = """<svg viewBox="0 0 32 32" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" \
aria-hidden="true"><path d="M3 16c3.6-5.6 8-8.4 13-8.4S25.4 10.4 29 16c-3.6 5.6-8 8.4-13 8.4S6.6 21.6 3 16Z"/>\
<circle class="pupil" cx="16" cy="16" r="3.6" stroke="none"/></svg>Sightline"""
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; $policy">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<header class="top">
<span class="mark">$mark</span>
</header>
<main>
$body</main>
$script</body>
</html>
""")


# The style of a grid of photos with their captions.
PHOTO_GRID = """
.photos { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: 1.4rem; }
.photos figure { background: var(--surface); border: 1px solid var(--border); border-radius: 1rem; overflow: hidden; }
.photos img { display: block; width: 100%; height: 15rem; object-fit: contain; background: var(--sunken); }
.photos figcaption { padding: 1rem 1.2rem 1.2rem; }
.photos figcaption { overflow-wrap: anywhere; }
.photos p { margin: 0; }
.photos .caption { font-size: 1.08rem; font-weight: 600; line-height: 1.4; margin-bottom: .3rem; }
.photos ul { margin: .7rem 0; padding-left: 1.1rem; font-size: .92rem; }
"""
SIDE = 320  # pixels of a thumbnail's longer side


def render_html(title: str, body: str, style: str = "", script: str = "") -> str:
    """A page that needs no other file and no network. ``body`` is HTML; ``style`` and ``script`` are this page's."""
    return PAGE.substitute(
        title=escape(title),
        mark=MARK,
        style=STYLESHEET.read_text(encoding="utf-8") + style,
        body=body,
        policy="style-src 'unsafe-inline'" + ("; script-src 'unsafe-inline'" if script else ""),
        script=f"<script>\n{script}</script>\n" if script else "",
    )


def jpeg_url(photo: Image.Image, quality: int = 88) -> str:
    """A photo inside the page, as a ``data:`` URL."""
    data = io.BytesIO()
    photo.convert("RGB").save(data, "JPEG", quality=quality)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


def thumbnail(source: ImageSource, alt: str) -> str:
    """A small photo as HTML; nothing where it cannot be opened any more: its text is still of use."""
    try:
        photo = open_image(source)
    except ImageError:
        return ""
    photo.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return f'<img alt="{escape(alt)}" src="{jpeg_url(photo, quality=80)}">'
