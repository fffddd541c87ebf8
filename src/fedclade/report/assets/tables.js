// Tables, which can be filtered where they are long, and the search for a client

const LONG = 20; // rows

function showTable(box, section) {
  const rows = section.table.filter((row, place) => !place || section.id !== "overview" || !reader.without.has(row[0]));
  const state = JSON.stringify(rows);
  if (box.dataset.state === state) return;
  box.dataset.state = state;
  if (!rows.length) return box.replaceChildren();
  const cell = (word) => element("td", { textContent: word, className: word.length > 30 ? "long" : "" });
  const head = element("thead", {}, element("tr", {}, ...rows[0].map((word) => element("th", { textContent: word, scope: "col" }))));
  const body = element("tbody", {}, ...rows.slice(1).map((row) => element("tr", {}, ...row.map(cell))));
  const table = element("table", {}, head, body);
  const scrolled = element("div", { className: "rows", tabIndex: 0, role: "region", ariaLabel: `table: ${section.title}` }, table);
  const shown = rows.length > LONG ? [filterOf(body), scrolled] : [scrolled];
  if (!section.folded) return box.replaceChildren(...shown);
  const was = box.querySelector("details")?.open ?? false;
  const more = element("summary", { textContent: `show ${rows.length - 1} rows` });
  box.replaceChildren(element("details", { open: was }, more, ...shown));
}

function filterOf(body) {
  const input = element("input", { type: "search" });
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  return element("label", { className: "filter" }, "only rows with ", input);
}

function prepareSearch() {
  byId("search").querySelector("input").addEventListener("input", (event) => {
    reader.client = event.target.value.trim();
    showFound();
    page.order.forEach((id) => sectionOf(id)?.tree && show(id));
    inSight.forEach(draw);
  });
}

function showFound() {
  const [head, ...rows] = sectionOf("clients")?.table ?? [[]];
  byId("search").hidden = !rows.length;
  const names = rows.map((row) => row[0]);
  if (byId("names").dataset.state !== String(names)) {
    byId("names").dataset.state = String(names);
    byId("names").replaceChildren(...names.map((value) => element("option", { value })));
  }
  const found = rows.find((row) => row[0] === reader.client);
  const close = reader.client ? names.filter((name) => name.includes(reader.client)).length : 0;
  const told = found ? head.slice(1).map((name, place) => `${name} ${found[place + 1]}`).join(", ") : `${close} clients have this in their names`;
  byId("found").textContent = reader.client ? told : "";
  for (const row of byId("clients").querySelectorAll("tbody tr")) row.className = row.cells[0].textContent === reader.client ? "found" : "";
}

const isFound = (name) => reader.client !== "" && name === reader.client;
