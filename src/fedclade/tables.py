"""Tables of words, the header first, in the forms that people paste."""

import re
from collections.abc import Sequence
from html import escape

Rows = Sequence[Sequence[str]]

STYLE = (
    "body{font-family:system-ui,sans-serif;margin:2rem;color-scheme:light dark}"
    "table{border-collapse:collapse}td,th{padding:.3rem .7rem;border-bottom:1px solid #8884;text-align:right}"
    "td:first-child,th:first-child{text-align:left}div{overflow-x:auto}"
)


def to_markdown(rows: Rows) -> str:
    head, *body = [[word.replace("|", "\\|") for word in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def to_latex(rows: Rows) -> str:
    def escaped(word: str) -> str:
        return re.sub(r"([&%$#_{}])", r"\\\1", word).replace("±", r"$\pm$")

    head, *body = [" & ".join(escaped(word) for word in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    )


def to_html(rows: Rows, title: str, legend: str = "") -> str:
    """A page with the table."""

    def line(words: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(word)}</{tag}>" for word in words) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows[1:])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1><div><table>"
        f"<thead>{line(rows[0], 'th')}</thead><tbody>{body}</tbody></table></div><p>{escape(legend)}</p></html>"
    )
