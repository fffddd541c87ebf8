// Figures, their legends, and the names along their axes

const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, // under a finger it would hide the figure
  modeBarButtonsToRemove: ["select2d", "lasso2d"],
  showSendToCloud: false, // what a report shows stays on the reader's machine
  plotlyServerURL: "",
};
const NAME = 14; // pixels that a name along an axis takes

const groupOf = (trace) => trace.legendgroup ?? trace.name;

function draw(id) {
  const place = byId(id).querySelector(".figure"), section = sectionOf(id);
  if (!section || !window.Plotly || place.hidden) return;
  const isTree = section.tree?.kind === "dendrogram";
  const figure = isTree ? dendrogramFigure(section.tree, cutOf(id, section.tree)) : viewOf(id, section).figure;
  const isHidden = (trace) => reader.without.has(trace.meta?.method) || reader.unlit[id]?.has(groupOf(trace));
  const data = figure.data.map((trace) => ({ ...trace, visible: !isHidden(trace) }));
  const layout = dressed(figure.layout, `${id}/${reader.run}/${JSON.stringify(reader.choices[id] ?? {})}`);
  if (section.tree?.kind === "rounds") layout.shapes = [cutLine("x", cutOf(id, section.tree))];
  const row = figure.data[0]?.type === "heatmap" ? figure.data[0].y.findIndex(isFound) : -1;
  if (row >= 0) layout.shapes = [...(layout.shapes ?? []), frame(row, layout.font.color)];
  Plotly.react(place, data, layout, CONFIG).then(() => nameAxis(place));
  if (!place.dataset.listens) {
    place.dataset.listens = "yes";
    place.on("plotly_relayout", () => nameAxis(place));
  }
}

function frame(row, color) {
  return { type: "rect", xref: "paper", x0: 0, x1: 1, y0: row - 0.5, y1: row + 0.5, line: { color, width: 2 } };
}

function nameAxis(place) {
  // As many names as there is room for: all of them once the reader has come close enough.
  const ticks = place.layout.meta?.ticks;
  if (!ticks) return;
  const axis = place._fullLayout[ticks.axis], [low, high] = [Math.min(...axis.range), Math.max(...axis.range)];
  const seen = ticks.at.map((_, k) => k).filter((k) => ticks.at[k] >= low && ticks.at[k] <= high);
  const step = Math.max(1, Math.ceil((seen.length * NAME) / axis._length));
  const shown = seen.filter((_, k) => k % step === 0);
  const state = JSON.stringify(shown);
  if (place.dataset.ticks === state && axis.tickvals?.length === shown.length) return;
  place.dataset.ticks = state;
  const values = { tickmode: "array", tickvals: shown.map((k) => ticks.at[k]), ticktext: shown.map((k) => ticks.text[k]) };
  Plotly.relayout(place, Object.fromEntries(Object.entries(values).map(([name, value]) => [`${ticks.axis}.${name}`, value])));
}

function showLegend(id, box, traces) {
  const named = new Map();
  for (const trace of traces) if (trace.name && trace.showlegend !== false && !named.has(groupOf(trace))) named.set(groupOf(trace), trace);
  const unlit = (reader.unlit[id] ??= new Set());
  const state = JSON.stringify([...named.keys()]) + JSON.stringify([...unlit]);
  if (box.dataset.state === state) return;
  box.dataset.state = state;
  if (named.size < 2) return box.replaceChildren();
  const items = [...named].map(([group, trace]) => {
    const sign = element("i"), tint = trace.line?.color ?? trace.marker?.color;
    sign.className = trace.marker?.symbol === "diamond" ? "diamond" : trace.line?.dash === "dot" ? "dotted" : "";
    sign.style[sign.className === "diamond" ? "background" : "borderColor"] = tint;
    const button = element("button", { type: "button", ariaPressed: String(!unlit.has(group)) }, sign, trace.name);
    button.addEventListener("click", () => {
      unlit.has(group) ? unlit.delete(group) : unlit.add(group);
      show(id);
    });
    return element("li", {}, button);
  });
  box.replaceChildren(...items);
}

function dressed(layout, revision) {
  const style = getComputedStyle(document.documentElement), tone = (name) => style.getPropertyValue(`--${name}`).trim();
  const narrow = isNarrow();
  const worn = structuredClone(layout);
  Object.assign(worn, {
    height: heightOf(layout),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: revision,
    font: { family: "system-ui, sans-serif", size: narrow ? 11 : 13, color: tone("ink") },
    hoverlabel: { bgcolor: tone("card"), bordercolor: tone("soft"), font: { color: tone("ink") }, align: "left" },
    margin: { l: narrow ? 40 : 60, r: 10, t: 10, b: 45, ...layout.margin },
    dragmode: narrow ? false : "zoom", // on a phone a finger on a figure scrolls the page
    modebar: { bgcolor: "rgba(0,0,0,0)", color: tone("soft"), activecolor: tone("accent") },
  });
  for (const name of Object.keys(worn).filter((key) => /^[xy]axis\d*$/.test(key))) {
    Object.assign(worn[name], { gridcolor: tone("line"), zerolinecolor: tone("line"), linecolor: tone("line"), tickcolor: tone("line") });
  }
  return worn;
}

function watchTheScroll() {
  const eye = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && !inSight.has(target.id)) {
        inSight.add(target.id);
        draw(target.id);
      }
    }
  }, { rootMargin: "300px" });
  page.order.forEach((id) => eye.observe(byId(id)));
  const redraw = () => inSight.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => page.order.forEach(draw));
}
