"""The OpenAPI document as a page for people: no scripts, and nothing fetched, as FastAPI's own would from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template
from typing import Any

from sightline.serve.static import StaticFile, page, web

EXAMPLE = r"""
curl -F photos=@dog.jpg -F beam=5 http://127.0.0.1:8000{path}

printf '{{"photos": ["%s"]}}' "$(base64 -w0 dog.jpg)" |
  curl -H 'Content-Type: application/json' -d @- http://127.0.0.1:8000{path}
"""
KINDS = {"number": "number", "integer": "whole number", "boolean": "true or false", "object": "object"}
UNBOUNDED = 1_000_000  # bounds that are only there against nonsense are not worth telling


def docs_page(document: dict[str, Any]) -> StaticFile:
    sections = [
        _section(path, method.upper(), operation, document["components"]["schemas"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    html = Template(web("docs.html")).substitute(
        style=web("base.css") + web("docs.css"),
        version=escape(document["info"]["version"]),
        description=escape(document["info"]["description"]),
        sections="\n".join(sections),
    )
    return page(html)


def _section(path: str, method: str, operation: dict[str, Any], known: dict[str, Any]) -> str:
    told = operation.get("description") or operation["summary"]
    parts = [f"<section><h2><span>{method}</span> {escape(path)}</h2><p>{escape(told)}</p>"]
    if body := operation.get("requestBody"):
        parts.append(f"<pre><code>{escape(EXAMPLE.format(path=path).strip())}</code></pre>")
        parts.append("<h3>Fields of the form, or of the JSON object</h3>")
        parts.append(_fields(body["content"]["multipart/form-data"]["schema"], known))
    answer = operation["responses"]["200"]["content"].get("application/json")
    if answer:
        parts += ["<h3>Answer</h3>", _fields(_resolved(answer["schema"], known), known)]
    refusals = [
        (status, escape(answer["description"]))
        for status, answer in sorted(operation["responses"].items())
        if status != "200"
    ]
    parts += ['<h3>Refusals, each with {"error": "why"}</h3>', _table(refusals), "</section>"]
    return "".join(parts)


def _fields(schema: dict[str, Any], known: dict[str, Any], above: tuple[str, ...] = ()) -> str:
    rows = []
    for name, field in schema["properties"].items():
        inner = field.get("items", field)
        reference = inner.get("$ref", "")
        nested = ""
        if reference and reference not in above:
            nested = _fields(_resolved(inner, known), known, (*above, reference))
        rows.append((name, f"<span>{_kind(field)}.</span> {escape(field.get('description', ''))}{nested}"))
    return _table(rows)


def _resolved(schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    return known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _kind(schema: dict[str, Any]) -> str:
    if choices := [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]:
        return _kind(choices[0]) + ", if there is one"
    if schema.get("type") == "array":
        inner = schema["items"]
        kind = "files or base64" if inner.get("format") == "binary" else f"list of {_kind(inner)}"
        return f"{kind}, at most {schema['maxItems']}" if "maxItems" in schema else kind
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", UNBOUNDED)
    bounds = "" if low is None or high >= UNBOUNDED else f", {low:g} to {high:g}"
    return KINDS.get(schema.get("type", "object"), "text") + bounds


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = [f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{html}</td></tr>' for name, html in rows]
    return f"<table>{''.join(lines)}</table>"
