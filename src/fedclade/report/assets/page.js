"use strict";
// The page's data come packed: sections by key (`id`, or `run/id` for those of one run), the order of the ids, and the
// names of methods and runs. What the reader has chosen is kept apart from them, so that new data do not undo it.
let page;
const reader = { run: 0, client: "", without: new Set(), choices: {}, cuts: {}, unlit: {} };
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
  prepareSearch();
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
    const parts = ["controls", "figure", "legend", "cut", "caption", "table"];
    const made = parts.map((name) => element(name === "legend" ? "ul" : "div", { className: name }));
    byId("sections").append(element("section", { id }, element("h2"), element("p", { className: "words" }), ...made));
  }
}

function showEverything() {
  showStatus(page.state, page.status);
  showMethods();
  showRuns();
  page.order.forEach(show);
  showContents();
  showFound();
}

function showStatus(state, words) {
  byId("status").dataset.state = state;
  byId("status").textContent = words;
}

function showContents() {
  const there = page.order.filter((id) => sectionOf(id));
  const links = there.map((id) => element("li", {}, element("a", { href: `#${id}`, textContent: sectionOf(id).title })));
  byId("contents").firstElementChild.replaceChildren(...links);
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
  const figure = part("figure"), view = section.views.length ? viewOf(id, section) : null;
  figure.hidden = !view && !section.tree;
  figure.style.minHeight = `${heightOf(view ? view.figure.layout : {})}px`; // no jumps
  figure.setAttribute("role", "img");
  figure.setAttribute("aria-label", [`${section.title}.`, section.words, view?.words].filter(Boolean).join(" "));
  part("caption").textContent = view?.words ?? "";
  showLegend(id, part("legend"), view?.figure.data ?? []);
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
    dot.style.background = page.colours[place];
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
    showContents();
    showFound();
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
