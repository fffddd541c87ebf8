"""Tables of words, the header first, in the forms that people paste."""

import re
from collections.abc import Iterable, Sequence
from html import escape

Rows = Sequence[Sequence[str]]

STYLE = """
:root{color-scheme:light dark;--accent:#2f6299;--other:#b3440a;--line:#8884}
@media(prefers-color-scheme:dark){:root{--accent:#7fa8d4;--other:#f0a36b}}
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1080px;padding:0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
td,th{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}.rows{overflow-x:auto}
figure{margin:1.5rem 0;max-width:720px}figcaption{font-size:.875rem}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:currentColor}.grid{stroke:var(--line);fill:none}.limit{stroke:currentColor;stroke-dasharray:3 3}
.dot{fill:var(--accent);fill-opacity:.65}.mean{stroke:var(--accent);stroke-width:2.5}.beside{fill:var(--other)}
img{max-width:100%;background:#fff}
"""


def to_markdown(rows: Rows) -> str:
    head, *body = [[word.replace("|", "\\|") for word in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def to_latex(rows: Rows, best: Iterable[tuple[int, int]] = ()) -> str:
    """`best` are the cells (line below the header, column) that stand in bold."""
    bold = set(best)

    def escaped(word: str, place: tuple[int, int]) -> str:
        text = re.sub(r"([&%$#_{}])", r"\\\1", word).replace("±", r"$\pm$")
        return rf"\textbf{{{text}}}" if place in bold else text

    lines = [
        " & ".join(escaped(word, (line - 1, column)) for column, word in enumerate(row)) + r" \\"
        for line, row in enumerate(rows)
    ]
    columns = "l" + "r" * (len(rows[0]) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
    )


def to_html(title: str, *parts: str) -> str:
    """A page of tables, figures and paragraphs, which needs no other file."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def html_table(rows: Rows, name: str) -> str:
    """A table that can be scrolled, also with the keyboard."""

    def line(words: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(word)}</{tag}>" for word in words) + "</tr>"

    head, body = (
        line(rows[0], 'th scope="col"').replace('</th scope="col">', "</th>"),
        "\n".join(line(row, "td") for row in rows[1:]),
    )
    table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
    return f'<div class="rows" tabindex="0" role="region" aria-label="{escape(name, quote=True)}">{table}</div>'


def paragraph(words: str) -> str:
    """With what stands between backticks as code."""
    return "<p>" + re.sub("`([^`]+)`", r"<code>\1</code>", escape(words)) + "</p>"
