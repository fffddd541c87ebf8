// Cuts: a tree after so many merges, or the clusters after a round

const NO_CLUSTER = "#8c8c8c";

function labelsAt(tree, cut) {
  if (tree.kind === "rounds") {
    const reached = Object.keys(tree.steps).map(Number).filter((round) => round <= cut);
    return tree.steps[reached.length ? Math.max(...reached) : Object.keys(tree.steps)[0]];
  }
  const count = tree.clients.length;
  const root = Array.from({ length: 2 * count }, (_, node) => node);
  for (let step = cut - 1; step >= 0; step--) {
    const [left, right] = tree.merges[step];
    root[left] = root[right] = root[count + step];
  }
  return root.slice(0, count);
}

function groupsOf(labels) {
  const groups = new Map();
  labels.forEach((label, place) => {
    if (label === -1) return; // not there yet
    if (!groups.has(label)) groups.set(label, []);
    groups.get(label).push(place);
  });
  return groups;
}

function present(groups, labels) {
  const there = labels.map((_, place) => place).filter((place) => labels[place] !== -1);
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

const cutOf = (id, tree) => Math.min(reader.cuts[id] ?? tree.used, lastOf(tree));
const lastOf = (tree) => (tree.kind === "rounds" ? tree.last : tree.merges.length);
const MOST_CUT = 100; // clusters: with more the slider would have no room for the cuts that matter
const firstOf = (tree) => (tree.kind === "rounds" ? 0 : Math.max(0, Math.min(tree.used, tree.merges.length + 1 - MOST_CUT)));
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const brief = (value) => Number(value.toPrecision(3));

function heightsAt(tree, cut) {
  // Of the last merge that was made, and of the next one.
  const height = (step) => tree.merges[step]?.[2];
  return [height(cut - 1) ?? 0, height(cut)];
}

function showCut(id, box, tree) {
  const rounds = tree.kind === "rounds";
  if (!box.firstChild) {
    const slider = element("input", { type: "range", min: 0, step: 1 });
    slider.addEventListener("input", () => {
      reader.cuts[id] = Number(slider.value);
      requestAnimationFrame(() => show(id));
    });
    box.append(slider, element("output"), element("ul", { tabIndex: 0, ariaLabel: "who would be together" }));
  }
  const [slider, output, list] = box.children, cut = cutOf(id, tree);
  Object.assign(slider, { min: firstOf(tree), max: lastOf(tree), ariaLabel: rounds ? "round" : "merges before the cut" });
  if (Number(slider.value) !== cut) slider.value = cut;
  const labels = labelsAt(tree, cut), groups = groupsOf(labels);
  const [low, high] = rounds ? [] : heightsAt(tree, cut);
  const where = rounds
    ? `after round ${cut}`
    : `after ${cut} of ${plural(tree.merges.length, "merge")}, ${high === undefined ? `above the height ${brief(low)}` : `between the heights ${brief(low)} and ${brief(high)}`}`;
  const mine = cut === tree.used ? (rounds ? " (the last)" : " (as in the run)") : "";
  const match = tree.groups ? `, ARI ${agreement(...present(tree.groups, labels)).toFixed(3)} with the hidden groups` : "";
  output.textContent = `${plural(groups.size, "cluster")} ${where}${mine}${match}`;
  output.dataset.clusters = groups.size;
  slider.setAttribute("aria-valuetext", output.textContent);
  list.replaceChildren(...lines(tree, groups));
}

function lines(tree, groups) {
  const colours = coloursOf(tree, groups);
  const wanted = (places) => places.some((place) => isFound(tree.clients[place]));
  const order = ([, one], [, other]) => wanted(other) - wanted(one) || other.length - one.length;
  const largest = [...groups].sort(order).slice(0, 60);
  const items = largest.map(([label, places]) => {
    const dot = element("i");
    dot.style.background = colours.get(label);
    const title = tree.kind === "rounds" ? `cluster ${label}, ` : "";
    const names = [...places].sort((one, other) => isFound(tree.clients[other]) - isFound(tree.clients[one])).slice(0, 40);
    const told = names.flatMap((place, k) => [k ? ", " : "", isFound(tree.clients[place]) ? element("mark", { textContent: tree.clients[place] }) : tree.clients[place]]);
    const more = places.length > 40 ? `, … and ${places.length - 40} more` : "";
    return element("li", {}, dot, `${title}${plural(places.length, "client")} `, element("span", {}, ...told, more));
  });
  const left = groups.size - largest.length;
  return left > 0 ? [...items, element("li", { textContent: `and ${left} smaller clusters` })] : items;
}

function coloursOf(tree, groups) {
  // A group takes the colour that its clients' cluster has elsewhere on the page, the largest group first; others take
  // new ones. In a dendrogram, who is alone has none.
  const taken = new Set(), colours = new Map();
  let next = Math.max(...tree.home) + 1;
  for (const [label, places] of [...groups].sort(([, one], [, other]) => other.length - one.length)) {
    if (places.length === 1 && tree.kind === "dendrogram") colours.set(label, NO_CLUSTER);
    else {
      const home = places.map((place) => tree.home[place]).find((place) => place >= 0 && !taken.has(place));
      const place = home ?? next++;
      taken.add(place);
      colours.set(label, page.colours[place % page.colours.length]);
    }
  }
  return colours;
}

function dendrogramFigure(tree, cut) {
  const count = tree.clients.length, merges = tree.merges;
  const x = new Array(2 * count), height = new Array(2 * count).fill(0), size = new Array(2 * count).fill(1);
  const leafOf = Array.from({ length: 2 * count }, (_, node) => node);
  tree.order.forEach((leaf, place) => (x[leaf] = place));
  const labels = labelsAt(tree, cut), colours = coloursOf(tree, groupsOf(labels)), traces = new Map();
  merges.forEach(([left, right, top], step) => {
    const node = count + step;
    [x[node], height[node], size[node], leafOf[node]] = [(x[left] + x[right]) / 2, top, size[left] + size[right], leafOf[left]];
    const tint = step < cut ? colours.get(labels[leafOf[left]]) : NO_CLUSTER;
    if (!traces.has(tint)) traces.set(tint, { x: [], y: [], text: [] });
    const trace = traces.get(tint), told = (at) => (at < count ? tree.clients[at] : `${size[at]} clients`);
    const merged = `merged at ${Number(top.toPrecision(4))}: ${size[node]} clients`;
    trace.x.push(x[left], x[left], x[node], x[right], x[right], null);
    trace.y.push(height[left], top, top, top, height[right], null);
    trace.text.push(told(left), merged, merged, merged, told(right), "");
  });
  const style = (tint) => ({ mode: "lines", line: { color: tint, width: count > 300 ? 1 : 1.6 }, showlegend: false });
  const data = [...traces].map(([tint, trace]) => ({ ...trace, ...style(tint), hovertemplate: "%{text}<extra></extra>" }));
  const ticks = { axis: "xaxis", at: tree.order.map((_, place) => place), text: tree.order.map((leaf) => tree.clients[leaf]) };
  const xaxis = { range: [-1, count], showgrid: false, zeroline: false, tickangle: -90, tickfont: { size: 10 }, automargin: true };
  const yaxis = { title: { text: tree.axis }, automargin: true, rangemode: "tozero" };
  const [low, high] = heightsAt(tree, cut);
  const shapes = [cutLine("y", high === undefined ? 1.05 * low : (low + high) / 2)];
  const found = ticks.text.findIndex(isFound);
  if (found >= 0) shapes.push({ ...cutLine("x", found), line: { color: page.colours[0], width: 2 } });
  return { data, layout: { height: 420, xaxis, yaxis, hovermode: "closest", shapes, meta: { ticks } } };
}

function cutLine(axis, at) {
  const along = axis === "y" ? { xref: "paper", x0: 0, x1: 1, y0: at, y1: at } : { yref: "paper", y0: 0, y1: 1, x0: at, x1: at };
  return { type: "line", ...along, line: { color: "#e45756", width: 2, dash: "dash" } };
}
