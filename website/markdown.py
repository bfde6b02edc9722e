"""From docstrings and pages to the Markdown that the site is made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_FENCE = re.compile(r"^\s*(```|~~~)")
_PARAM = re.compile(r"^:param (\w+): ?(.*)$")
_CITED = re.compile(r"^\.\. \[(\d+)\] ?(.*)$")


def fenced(text: str) -> str:
    r"""Examples as blocks of code: Markdown would take their prompts for quotations.

    >>> fenced("So:\n\n>>> 1 + 1\n2\n\nThat is it.").splitlines()
    ['So:', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'That is it.']
    """
    out: list[str] = []
    inside = example = False
    for line in text.splitlines():
        if example and (not line.strip() or _FENCE.match(line)):
            out.append("```")
            example = False
        if _FENCE.match(line):
            inside = not inside
        elif line.startswith(">>> ") and not inside and not example:
            out.append("```pycon")
            example = True
        out.append(line)
    if example:
        out.append("```")
    return re.sub(r"^```python\n(?=>>>)", "```pycon\n", "\n".join(out), flags=re.MULTILINE)


def of_docstring(text: str | None) -> str:
    r"""A docstring as Markdown: parameters as a list, the sources it cites at the end, examples as code.

    >>> print(of_docstring("Adds [1]_.\n\n:param a: one,\n    of two.\n\n.. [1] Euclid."))
    Adds.
    <BLANKLINE>
    - **`a`**: one, of two.
    <BLANKLINE>
    *Euclid.*
    """
    if not text:
        return ""
    out: list[str] = []
    gathering = ""
    for line in inspect.cleandoc(text).splitlines():
        parameter, cited = _PARAM.match(line), _CITED.match(line)
        if parameter:
            if gathering != "param" and out and out[-1]:
                out.append("")
            out.append(f"- **`{parameter[1]}`**: {parameter[2]}")
            gathering = "param"
        elif cited:
            out.append(f"*{cited[2]}*")
            gathering = "cited"
        elif gathering and line.startswith(" "):
            if gathering == "cited":
                out[-1] = out[-1][:-1] + f" {line.strip()}*"
            else:
                out[-1] += " " + line.strip()
        else:
            gathering = ""
            out.append(line)
    body = re.sub(r" ?\[\d+\]_", "", "\n".join(_drawn(out)))
    return fenced(body)


def _drawn(lines: list[str]) -> Iterator[str]:
    """Blocks that are drawn with characters keep their columns: a paragraph that ends with `::` begins one."""
    drawing = False
    for i, line in enumerate(lines):
        if line.endswith("::") and i + 1 < len(lines) and not lines[i + 1].strip():
            yield line[:-1]
            yield ""
            yield "```text"
            drawing = True
        elif drawing and line.strip() and not line.startswith("    "):
            yield "```"
            yield ""
            yield line
            drawing = False
        elif drawing:
            if line.strip() or lines[i - 1].strip():
                yield line[4:]
        else:
            yield line
    if drawing:
        yield "```"


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, without marks of sources.

    >>> first_sentence("Keeps rows [1]_. And more.")
    'Keeps rows.'
    """
    paragraph = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    found = re.match(r"(.*?\.)(?: |$)", paragraph)
    return re.sub(r" ?\[\d+\]_", "", found[1] if found else paragraph)


def slug(heading: str) -> str:
    """The anchor of a heading, as the site and GitHub's pages make it of the usual ones.

    >>> slug("What it costs: `memory`, and more")
    'what-it-costs-memory-and-more'
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\s-]", "", text.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", text)
