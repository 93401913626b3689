// The table of layers: sorting, filtering, and drawing in chunks. Text is set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
const CHUNK = 200;
const LONG = 160; // characters; more are cut after four lines until the row is opened

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function size(count) {
  if (Math.abs(count) < 1000) return count === 1 ? "1 byte" : `${count} bytes`;
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(count) >= 999.5 && unit < units.length - 1) { count /= 1000; unit++; }
  return `${count.toFixed(Math.abs(count) < 9.995 ? 2 : Math.abs(count) < 99.95 ? 1 : 0)} ${units[unit]}`;
}

// JSON has no infinities: the report writes them as strings.
function number(value) {
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return typeof value === "number" ? value : NaN;
}

const guard = (r) => (number(r.guard_db) >= 0.05 ? ` (−${sqnr(r.guard_db)})` : "");
const stateOf = (row) => (row.how ? "treated" : row.asked ? "skipped" : "left");

function sqnr(value) {
  if (value === null) return "";
  if (value === "nan") return "not a number";
  return value === "inf" ? "no error" : value === "-inf" ? "−∞" : value.toFixed(1).replace("-", "−");
}

const shape = (row) => (row.shape.length ? row.shape.join(" × ") : "scalar");

// label, cell text, sort key, and whether it is a number
const columns = [
  { label: "Name", text: (r) => r.name, key: (r) => r.name },
  { label: "Kind", text: (r) => r.kind, key: (r) => r.kind },
  { label: "Shape", text: shape, key: (r) => r.shape.reduce((a, b) => a * b, 1), number: true },
  { label: "Dtype", text: (r) => r.dtype, key: (r) => r.dtype },
  { label: "How, or why not", wide: true, text: (r) => r.how || r.why_not || "left float", key: (r) => r.how || `\uffff${r.why_not}` },
  { label: "Before", text: (r) => size(r.bytes_before), key: (r) => r.bytes_before, number: true },
  { label: "After", text: (r) => size(r.bytes_after), key: (r) => r.bytes_after, number: true },
  { label: "SQNR dB", text: (r) => sqnr(r.sqnr_db) + guard(r), key: (r) => number(r.sqnr_db), number: true },
  { label: "Method", text: (r) => r.method, key: (r) => r.method },
  { label: "Bits", text: (r) => (r.bits ? r.bits.toFixed(2) : ""), key: (r) => r.bits || NaN, number: true },
  { label: "Outputs dB", text: (r) => sqnr(r.predicted_db), key: (r) => (r.predicted_db === null ? NaN : number(r.predicted_db)), number: true },
  { label: "Activations", wide: true, text: (r) => r.activations, key: (r) => r.activations },
  { label: "Note", wide: true, text: (r) => r.note, key: (r) => r.note },
].filter((column, i) => i < 8 || data.rows.some((row) => column.text(row)));

const rows = data.rows.map((row, index) => ({
  row, index, state: stateOf(row), words: columns.map((c) => c.text(row)).join("\n").toLowerCase(),
}));
let sorted = { column: -1, down: false };
let visible = rows;
let drawn = 0;
const body = $("layers") && $("layers").tBodies[0];
const sentinel = element("div", { class: "sentinel" });

function compare(a, b) {
  if (sorted.column < 0) return a.index - b.index;
  const key = columns[sorted.column].key;
  const x = key(a.row), y = key(b.row);
  if (typeof x === "string") {
    if (!x !== !y) return x ? -1 : 1; // empty cells last in both directions
    return (sorted.down ? -1 : 1) * collator.compare(x, y) || a.index - b.index;
  }
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.index - b.index;
  return (x === y ? 0 : (x < y) === sorted.down ? 1 : -1) || a.index - b.index;
}

function rowElement(entry) {
  const made = element("tr", { class: `row ${entry.state}`, "data-index": entry.index });
  columns.forEach((column, i) => {
    const text = column.text(entry.row);
    if (i === 0) {
      const name = element("button", { type: "button", class: `link name${text.length > LONG ? " long" : ""}`, title: text, "aria-expanded": "false" });
      // Long names break after their dots, slashes and underscores.
      for (const part of (text || "(no name)").split(/(?<=[./_])/)) name.append(part, element("wbr"));
      made.append(element("td", { class: "name-cell" }, name));
      return;
    }
    const cell = element("td", { "data-label": i === 4 ? (entry.row.how ? "How" : "Why not") : column.label }, element("span", { class: `${i === 4 ? "state" : ""}${text.length > LONG ? " long" : ""}` }, text));
    cell.className = [column.number ? "number" : "", column.wide ? "text" : "", text ? "" : "empty"].join(" ").trim();
    made.append(cell);
  });
  return made;
}

function drawMore(upTo = drawn + CHUNK) {
  const part = document.createDocumentFragment();
  for (; drawn < Math.min(upTo, visible.length); drawn++) part.append(rowElement(visible[drawn]));
  body.append(part);
}

function redraw() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const kind = $("kind").value, state = $("state").value;
  visible = rows.filter((r) =>
    (!kind || r.row.kind === kind) && (!state || r.state === state) && words.every((w) => r.words.includes(w)));
  visible.sort(compare);
  body.replaceChildren();
  drawn = 0;
  drawMore();
  if (!visible.length) body.append(element("tr", { class: "none-left" }, element("td", { colspan: columns.length }, "No layer matches.")));
  const all = visible.length === rows.length;
  $("shown").textContent = all ? `${rows.length.toLocaleString("en")} layers`
    : `${visible.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} layers`;
}

function sortBy(i) {
  // Numbers sort descending first, the SQNR ascending: its worst come first.
  const first = columns[i].number && columns[i].label !== "SQNR dB";
  if (sorted.column !== i) sorted = { column: i, down: first };
  else if (sorted.down === first) sorted = { column: i, down: !first };
  else sorted = { column: -1, down: false };
  [...$("layers").tHead.rows[0].cells].forEach((cell, at) =>
    cell.setAttribute("aria-sort", at !== sorted.column ? "none" : sorted.down ? "descending" : "ascending"));
  redraw();
}

function toggleDetail(line) {
  const button = line.querySelector("button");
  const open = button.getAttribute("aria-expanded") === "true";
  if (open) line.nextElementSibling.remove();
  else {
    const name = data.rows[line.dataset.index].name;
    const found = data.histograms.filter((h) => h.name === name);
    const inner = found.length ? element("div", { class: "figures-of" }, ...found.map(histogramFigure))
      : element("span", { class: "hint" }, "There is no histogram of this weight.");
    line.after(element("tr", { class: "detail" }, element("td", { colspan: columns.length }, inner)));
  }
  line.classList.toggle("open", !open);
  button.setAttribute("aria-expanded", String(!open));
}

// Clears the filters if they hide it, then opens the layer and brings it into view.
function showLayer(index) {
  if (!visible.some((r) => r.index === index)) {
    $("filter").value = $("kind").value = $("state").value = "";
    redraw();
  }
  drawMore(visible.findIndex((r) => r.index === index) + CHUNK / 4);
  const line = body.querySelector(`tr[data-index="${index}"]`);
  if (!line.classList.contains("open")) toggleDetail(line);
  line.scrollIntoView({ block: "center" });
  line.querySelector("button").focus({ preventScroll: true });
}

if (body) {
  const head = element("tr", {}, ...columns.map((column, i) => {
    const button = element("button", { type: "button" }, column.label);
    button.addEventListener("click", () => sortBy(i));
    return element("th", { scope: "col", "aria-sort": "none", class: column.number ? "number" : "" }, button);
  }));
  $("layers").tHead.append(head);
  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr.row");
    // Selecting text is not a click.
    if (line && !String(getSelection())) toggleDetail(line);
  });
  for (const id of ["filter", "kind", "state"]) $(id).addEventListener("input", redraw);
  $("layers").after(sentinel);
  new IntersectionObserver((seen) => seen[0].isIntersecting && drawMore(), { rootMargin: "800px" }).observe(sentinel);
  addEventListener("beforeprint", () => drawMore(visible.length));
  redraw();
}
