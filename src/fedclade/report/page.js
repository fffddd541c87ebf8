"use strict";
// The page's data come packed: sections by key (`id`, or `run/id` for those of one run), the order of the ids, and the
// names of methods and runs. What the reader has chosen is kept apart from them, so that new data do not undo it.
let page;
const reader = { run: 0, without: new Set(), choices: {}, cuts: {} };
const inSight = new Set();
const byId = (id) => document.getElementById(id);

async function unpacked(id) {
  const letters = atob(byId(id).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  byId(id).remove();
  return new Response(plain).text();
}

async function open() {
  if (!("DecompressionStream" in window)) return showStatus("stopped", "This page needs a browser of 2023 or later.");
  page = JSON.parse(await unpacked("page-packed"));
  prepareSections();
  showEverything();
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly-packed");
  document.head.append(script);
  watchTheScroll();
  document.documentElement.dataset.ready = "yes";
  if (page.live) poll();
}

// Sections

const sectionOf = (id) => page.sections[id] ?? page.sections[`${reader.run}/${id}`];

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function prepareSections() {
  for (const id of page.order) {
    const parts = ["controls", "figure", "cut", "caption", "table"].map((name) => element("div", { className: name }));
    byId("sections").append(element("section", { id }, element("h2"), element("p", { className: "words" }), ...parts));
  }
}

function showEverything() {
  showStatus(page.state, page.status);
  showMethods();
  showRuns();
  page.order.forEach(show);
}

function showStatus(state, words) {
  byId("status").dataset.state = state;
  byId("status").textContent = words;
}

function show(id) {
  const place = byId(id), section = sectionOf(id);
  place.hidden = !section;
  if (!section) return;
  const part = (name) => place.querySelector(`.${name}`);
  place.querySelector("h2").textContent = section.title;
  part("words").textContent = section.words;
  showTable(part("table"), section);
  if (section.views.length) showControls(id, part("controls"), section);
  if (section.tree) showCut(id, part("cut"), section.tree);
  else part("cut").replaceChildren();
  const figure = part("figure");
  figure.hidden = !section.views.length && !section.tree;
  figure.style.minHeight = `${heightOf(section.views.length ? viewOf(id, section).figure.layout : {})}px`; // no jumps
  part("caption").textContent = section.views.length ? viewOf(id, section).words : "";
  if (inSight.has(id)) draw(id);
}

const isNarrow = () => window.innerWidth < 600;

function heightOf(layout) {
  const isSquare = layout.yaxis?.scaleanchor !== undefined;
  return isSquare && isNarrow() ? window.innerWidth : (layout.height ?? 420);
}

function showMethods() {
  const box = byId("methods");
  box.hidden = page.methods.length < 2;
  byId("toolbar").hidden = page.methods.length < 2 && page.runs.length < 2;
  if (box.dataset.names === JSON.stringify(page.methods)) return;
  box.dataset.names = JSON.stringify(page.methods);
  box.querySelectorAll("label").forEach((label) => label.remove());
  page.methods.forEach((name, place) => {
    const tick = element("input", { type: "checkbox", checked: !reader.without.has(name), value: name });
    tick.addEventListener("change", () => {
      tick.checked ? reader.without.delete(name) : reader.without.add(name);
      page.order.forEach((id) => page.sections[id] && show(id));
    });
    const dot = element("i");
    dot.style.background = page.colours[place % page.colours.length];
    box.append(element("label", {}, tick, dot, name));
  });
}

function showRuns() {
  const label = byId("runs"), select = label.querySelector("select");
  label.hidden = page.runs.length < 2;
  if (select.options.length === page.runs.length) return;
  select.replaceChildren(...page.runs.map((name, place) => element("option", { value: place, textContent: name })));
  select.onchange = () => {
    reader.run = Number(select.value);
    reader.cuts = {};
    page.order.forEach(show);
  };
}

// Choices between the views of a section

function viewOf(id, section) {
  const wanted = reader.choices[id] ?? {};
  let left = section.views;
  for (const name of Object.keys(section.views[0].choice)) {
    const matching = left.filter((view) => view.choice[name] === wanted[name]);
    left = matching.length ? matching : left.filter((view) => view.choice[name] === left[0].choice[name]);
  }
  return left[0];
}

function showControls(id, box, section) {
  const now = viewOf(id, section);
  let left = section.views;
  const controls = [];
  for (const name of Object.keys(now.choice)) {
    const options = [...new Set(left.map((view) => view.choice[name]))];
    if (options.length > 1) controls.push([name, options, now.choice[name]]);
    left = left.filter((view) => view.choice[name] === now.choice[name]);
  }
  const state = JSON.stringify(controls);
  if (box.dataset.state === state) return;
  box.dataset.state = state;
  const choose = (name, value) => {
    reader.choices[id] = { ...now.choice, ...reader.choices[id], [name]: value };
    show(id);
  };
  box.replaceChildren(...controls.map((control) => (control[0] === "by" ? buttons : menu)(choose, ...control)));
}

function buttons(choose, name, options, chosen) {
  const all = options.map((option) => {
    const button = element("button", { type: "button", textContent: `by ${option}`, ariaPressed: String(option === chosen) });
    button.addEventListener("click", () => choose(name, option));
    return button;
  });
  return element("div", { className: "choice", role: "group" }, ...all);
}

function menu(choose, name, options, chosen) {
  const select = element("select", { name }, ...options.map((option) => element("option", { value: option, textContent: option })));
  select.value = chosen;
  select.addEventListener("change", () => choose(name, select.value));
  return element("label", {}, `${name} `, select);
}

// Tables

function showTable(box, section) {
  const rows = section.table.filter((row, place) => !place || section.id !== "overview" || !reader.without.has(row[0]));
  const state = JSON.stringify(rows);
  if (box.dataset.state === state) return;
  box.dataset.state = state;
  if (!rows.length) return box.replaceChildren();
  const cell = (word) => {
    const kind = /^[\d.,·-]+(\s?(%|[kMGT]?B|s|min.*|h.*))?$/.test(word) ? "number" : word.length > 30 ? "long" : "";
    return element("td", { textContent: word, className: kind });
  };
  const head = element("thead", {}, element("tr", {}, ...rows[0].map((word) => element("th", { textContent: word }))));
  const body = element("tbody", {}, ...rows.slice(1).map((row) => element("tr", {}, ...row.map(cell))));
  const table = element("table", {}, head, body);
  if (!section.folded) return box.replaceChildren(table);
  const was = box.querySelector("details")?.open ?? false;
  const more = element("summary", { textContent: `show ${rows.length - 1} rows` });
  box.replaceChildren(element("details", { open: was }, more, element("div", {}, table)));
}

// Cuts

function labelsAt(tree, cut) {
  if (tree.kind === "rounds") {
    const reached = Object.keys(tree.steps).map(Number).filter((round) => round <= cut);
    return tree.steps[reached.length ? Math.max(...reached) : Object.keys(tree.steps)[0]];
  }
  const count = tree.clients.length;
  const root = Array.from({ length: 2 * count }, (_, node) => node);
  for (let step = tree.merges.length - 1; step >= 0; step--) {
    const [left, right, height] = tree.merges[step];
    if (height <= cut) root[left] = root[right] = root[count + step];
  }
  return root.slice(0, count);
}

function groupsOf(labels) {
  const groups = new Map();
  labels.forEach((label, place) => {
    if (label !== -1) groups.set(label, [...(groups.get(label) ?? []), place]);
  });
  return groups;
}

function present(groups, labels) {
  const there = labels.map((_, place) => place).filter((place) => labels[place] !== -1); // others had not come yet
  return [there.map((place) => groups[place]), there.map((place) => labels[place])];
}

function agreement(truth, labels) {
  const pairs = (count) => (count * (count - 1)) / 2;
  const sum = (keys) => {
    const counts = new Map();
    keys.forEach((key) => counts.set(key, (counts.get(key) ?? 0) + 1));
    return [...counts.values()].reduce((total, count) => total + pairs(count), 0);
  };
  const both = sum(truth.map((group, place) => `${group}/${labels[place]}`));
  const [a, b] = [sum(truth), sum(labels)];
  const expected = (a * b) / pairs(truth.length), best = (a + b) / 2;
  return best === expected ? 1 : (both - expected) / (best - expected);
}

function showCut(id, box, tree) {
  const rounds = tree.kind === "rounds";
  const top = rounds ? tree.last : 1.05 * tree.merges.at(-1)[2];
  if (!box.firstChild) {
    const slider = element("input", { type: "range", ariaLabel: rounds ? "round" : "threshold" });
    slider.addEventListener("input", () => {
      reader.cuts[id] = Number(slider.value);
      requestAnimationFrame(() => show(id));
    });
    box.append(slider, element("output"), element("ul"));
  }
  const [slider, output, list] = box.children;
  Object.assign(slider, { min: 0, max: top, step: rounds ? 1 : top / 2000 });
  const cut = cutOf(id, tree);
  if (Number(slider.value) !== cut) slider.value = cut;
  const labels = labelsAt(tree, cut), groups = groupsOf(labels);
  const match = tree.groups ? `, ARI ${agreement(...present(tree.groups, labels)).toFixed(3)} with the hidden groups` : "";
  const where = rounds ? `after round ${cut}` : `at threshold ${Number(cut.toPrecision(3))}`;
  const mine = cut === tree.used ? (rounds ? " (the last)" : " (as in the run)") : "";
  output.textContent = `${groups.size} ${groups.size === 1 ? "cluster" : "clusters"} ${where}${mine}${match}`;
  output.dataset.clusters = groups.size;
  list.replaceChildren(...lines(tree, groups));
}

const cutOf = (id, tree) => reader.cuts[id] ?? tree.used;

function lines(tree, groups) {
  const colours = coloursOf(tree, groups);
  const largest = [...groups].sort((one, other) => other[1].length - one[1].length).slice(0, 60);
  const items = largest.map(([label, places]) => {
    const names = places.slice(0, 40).map((place) => tree.clients[place]).join(", ");
    const more = places.length > 40 ? `, … and ${places.length - 40} more` : "";
    const dot = element("i");
    dot.style.background = colours.get(label);
    const title = tree.kind === "rounds" ? `cluster ${label}, ` : "";
    const size = `${title}${places.length} ${places.length === 1 ? "client" : "clients"} `;
    return element("li", {}, dot, size, element("span", { textContent: names + more }));
  });
  const left = groups.size - largest.length;
  return left > 0 ? [...items, element("li", { textContent: `and ${left} smaller clusters` })] : items;
}

function coloursOf(tree, groups) {
  const known = tree.colours ?? {};
  return new Map([...groups.keys()].map((label, place) => [label, page.colours[(known[label] ?? place) % page.colours.length]]));
}

function dendrogramFigure(tree, cut) {
  const count = tree.clients.length, merges = tree.merges;
  const parts = (node) => (node < count ? [node] : [...parts(merges[node - count][0]), ...parts(merges[node - count][1])]);
  const order = tree.order ?? (tree.order = parts(count + merges.length - 1));
  const x = new Array(2 * count), height = new Array(2 * count).fill(0), size = new Array(2 * count).fill(1);
  order.forEach((leaf, place) => (x[leaf] = place));
  const labels = labelsAt(tree, cut), colours = coloursOf(tree, groupsOf(labels));
  const above = "#8c8c8c", traces = new Map(), first = order.map((leaf) => leaf);
  const leafOf = new Array(2 * count);
  first.forEach((leaf) => (leafOf[leaf] = leaf));
  merges.forEach(([left, right, top], step) => {
    const node = count + step;
    [x[node], height[node], size[node], leafOf[node]] = [(x[left] + x[right]) / 2, top, size[left] + size[right], leafOf[left]];
    const tint = top <= cut ? colours.get(labels[leafOf[left]]) : above;
    if (!traces.has(tint)) traces.set(tint, { x: [], y: [], text: [] });
    const trace = traces.get(tint), told = (at) => (at < count ? tree.clients[at] : `${size[at]} clients`);
    const merged = `merged at ${Number(top.toPrecision(4))}: ${size[node]} clients`;
    trace.x.push(x[left], x[left], x[node], x[right], x[right], null);
    trace.y.push(height[left], top, top, top, height[right], null);
    trace.text.push(told(left), merged, merged, merged, told(right), "");
  });
  const style = (tint) => ({ mode: "lines", line: { color: tint, width: count > 300 ? 1 : 1.6 }, showlegend: false });
  const data = [...traces].map(([tint, trace]) => ({ ...trace, ...style(tint), hovertemplate: "%{text}<extra></extra>" }));
  const names = count <= 40 ? { tickvals: order.map((_, place) => place), ticktext: order.map((leaf) => tree.clients[leaf]) } : { showticklabels: false };
  const xaxis = { ...names, showgrid: false, zeroline: false, tickangle: -90, tickfont: { size: 9 }, automargin: true };
  const yaxis = { title: { text: tree.axis }, automargin: true, rangemode: "tozero" };
  return { data, layout: { height: 420, xaxis, yaxis, hovermode: "closest", shapes: [cutLine("y", cut)] } };
}

function cutLine(axis, at) {
  const along = axis === "y" ? { xref: "paper", x0: 0, x1: 1, y0: at, y1: at } : { yref: "paper", y0: 0, y1: 1, x0: at, x1: at };
  return { type: "line", ...along, line: { color: "#e45756", width: 2, dash: "dash" } };
}

// Figures

const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, // under a finger it would hide the figure
  modeBarButtonsToRemove: ["select2d", "lasso2d"],
  showSendToCloud: false, // what a report shows stays on the reader's machine
  plotlyServerURL: "",
};

function draw(id) {
  const place = byId(id).querySelector(".figure"), section = sectionOf(id);
  if (!section || !window.Plotly || place.hidden) return;
  let figure;
  if (section.tree?.kind === "dendrogram") figure = dendrogramFigure(section.tree, cutOf(id, section.tree));
  else figure = viewOf(id, section).figure;
  const data = figure.data.map((trace) => ({ ...trace, visible: !reader.without.has(trace.meta?.method) }));
  const layout = dressed(figure.layout, `${id}/${reader.run}/${JSON.stringify(reader.choices[id] ?? {})}`);
  if (section.tree?.kind === "rounds") layout.shapes = [cutLine("x", cutOf(id, section.tree))];
  Plotly.react(place, data, layout, CONFIG);
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

// Live

async function poll() {
  try {
    const answer = await fetch(`changes?since=${page.version}`, { cache: "no-store" });
    const news = await answer.json();
    if (news.version !== page.version) {
      for (const [key, section] of Object.entries(news.sections)) {
        if (section) page.sections[key] = section;
        else delete page.sections[key];
      }
      Object.assign(page, { ...news, sections: page.sections });
      showStatus(page.state, page.status);
      showMethods();
      showRuns();
      for (const id of page.order) if (id in news.sections || `${reader.run}/${id}` in news.sections) show(id);
    } else if (byId("status").textContent !== page.status) showStatus(page.state, page.status);
  } catch {
    showStatus("stopped", `${page.status}; not watched any more`);
  }
  setTimeout(poll, page.pause);
}

open();
