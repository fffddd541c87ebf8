"""Small figures as SVG text, for pages of tables: they need no library, and say in words what they show."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from xml.etree import ElementTree

import numpy as np

WIDTH, ROW, RIGHT, TOP, BOTTOM = 720, 26, 30, 8, 46
MOST_LEFT = 300  # of names beside rows
TALL = 360  # of a figure with two axes
LETTER = 7.2  # pixels, about
CAPTION = 26  # pixels above a figure in a file of its own
ON_WHITE = """
svg{font:12px system-ui,sans-serif}
text{fill:#222}.grid{stroke:#ccc;fill:none}.limit{stroke:#222;stroke-dasharray:3 3}
.dot{fill:#2f6299;fill-opacity:.65}.mean{stroke:#2f6299;stroke-width:2.5}.beside{fill:#b3440a}
"""


def dots(
    rows: Mapping[str, Sequence[float]],
    title: str,
    axis: str,
    beside: Mapping[str, float] | None = None,
    limit: tuple[float, str] | None = None,
) -> str:
    """A line for each row: its values as dots, their mean as a bar, and what they are set beside as a diamond."""
    beside = beside or {}
    values = [value for mine in rows.values() for value in mine] + list(beside.values()) + ([limit[0]] if limit else [])
    ticks = nice_ticks(min(values), max(values))
    height = TOP + ROW * len(rows) + BOTTOM
    left = min(MOST_LEFT, 20 + LETTER * max(map(len, rows)))
    across = _Scale(ticks[0], ticks[-1], left, WIDTH - RIGHT)
    drawn = [_x_axis(across, ticks, height, axis)]
    if limit:
        at = across(limit[0])
        drawn.append(
            f'<path class="limit" d="M{at:.1f} {TOP}V{height - BOTTOM}"><title>{escape(limit[1])}</title></path>'
        )
    for place, (name, mine) in enumerate(rows.items()):
        y = TOP + ROW * (place + 0.5)
        drawn.append(f'<text x="{left - 10:.0f}" y="{y + 4:.1f}" text-anchor="end">{escape(_cut(name))}</text>')
        drawn += [f'<circle class="dot" cx="{across(value):.1f}" cy="{y:.1f}" r="3.5"/>' for value in mine]
        if len(mine):
            drawn.append(f'<path class="mean" d="M{across(float(np.mean(mine))):.1f} {y - 8:.1f}v16"/>')
        if name in beside:
            x = across(beside[name])
            drawn.append(f'<path class="beside" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>')
    told = [
        f"{name}: {_mean(mine)}" + (f", beside {beside[name]:.4g}" if name in beside else "")
        for name, mine in rows.items()
    ]
    return _figure(title, told, height, drawn)


def scatter(points: Mapping[str, tuple[float, float]], title: str, x_axis: str, y_axis: str) -> str:
    """A labelled point for each name."""
    xs, ys = ([point[k] for point in points.values()] for k in (0, 1))
    x_ticks, y_ticks = nice_ticks(0.0, max(xs)), nice_ticks(min(ys), max(ys))
    across = _Scale(x_ticks[0], x_ticks[-1], 70, WIDTH - RIGHT)
    up = _Scale(y_ticks[0], y_ticks[-1], TALL - BOTTOM, TOP + 10)
    drawn = [_x_axis(across, x_ticks, TALL, x_axis)]
    for tick in y_ticks:
        drawn.append(f'<path class="grid" d="M70 {up(tick):.1f}H{WIDTH - RIGHT}"/>')
        drawn.append(f'<text x="62" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    drawn.append(f'<text transform="translate(16 {TALL / 2}) rotate(-90)" text-anchor="middle">{escape(y_axis)}</text>')
    taken = [(up(y) + 4, across(x) - 6, across(x) + 6) for x, y in points.values()]
    for name, (x, y) in sorted(points.items(), key=lambda item: -item[1][1]):
        drawn.append(f'<circle class="dot" cx="{across(x):.1f}" cy="{up(y):.1f}" r="4.5"/>')
        drawn.append(_label(name, across(x), up(y), taken))
    return _figure(title, [f"{name}: {y:.4g} at {x:.4g}" for name, (x, y) in points.items()], TALL, drawn)


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers from below the lowest to above the highest."""
    if not high > low:
        low, high = low - 1, high + 1
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


class _Scale:
    """From values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.start, self.factor = low, start, (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) * self.factor


def _x_axis(across: _Scale, ticks: Sequence[float], height: float, name: str) -> str:
    bottom, ends = height - BOTTOM, (across(ticks[0]) + across(ticks[-1])) / 2
    lines = [f'<path class="grid" d="M{across(tick):.1f} {TOP}V{bottom}"/>' for tick in ticks]
    lines += [f'<text x="{across(t):.1f}" y="{bottom + 17}" text-anchor="middle">{t:g}</text>' for t in ticks]
    return "".join(lines) + f'<text x="{ends:.0f}" y="{height - 8}" text-anchor="middle">{escape(name)}</text>'


def _label(name: str, x: float, y: float, taken: list[tuple[float, float, float]]) -> str:
    """Beside its point, or further down while a label or a point is in the way; to the left where the page ends."""
    wide = LETTER * len(name)
    left = x + wide + 10 > WIDTH
    start = x - 9 - wide if left else x + 9
    down = y + 4
    while any(abs(down - other) < 13 and start < end and begin < start + wide for other, begin, end in taken):
        down += 13
    taken.append((down, start, start + wide))
    end, at = (' text-anchor="end"', x - 9) if left else ("", x + 9)
    return f'<text x="{at:.1f}" y="{down:.1f}"{end}>{escape(name)}</text>'


def _cut(name: str) -> str:
    most = int((MOST_LEFT - 20) / LETTER)
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4g}" if len(values) else "nothing"


def _figure(title: str, told: Sequence[str], height: float, drawn: Sequence[str]) -> str:
    words = escape(f"{title}. {'; '.join(told)}.", quote=True)
    svg = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{words}">{"".join(drawn)}</svg>'
    return f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>"


def standalone(figures: Sequence[str]) -> str:
    """Figures of a page under each other, as the text of one SVG file."""
    drawn, height = [], 0.0
    for figure in figures:
        svg, caption = ElementTree.fromstring(figure)
        own = float(svg.attrib["viewBox"].split()[-1])
        drawn.append(f'<text x="10" y="{height + 18:.0f}">{escape(caption.text or "")}</text>')
        svg.attrib |= {"y": f"{height + CAPTION:.0f}", "width": str(WIDTH), "height": f"{own:.0f}"}
        drawn.append(ElementTree.tostring(svg, encoding="unicode"))
        height += CAPTION + own
    frame = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}">'
    return f"{head}<style>{ON_WHITE}</style>{frame}{''.join(drawn)}</svg>\n"
