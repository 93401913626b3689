// Histograms with clipping marks; one path each, with counts on a logarithmic scale.
function drawing(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const MARGIN = 6; // of 1000
const figure3 = (value) => String(+value.toPrecision(3)).replace("-", "−");

// The share of values outside the clipping range; a bin that it cuts counts in part.
function shareOutside(edges, counts, [low, high]) {
  let outside = 0, all = 0;
  counts.forEach((count, i) => {
    const width = edges[i + 1] - edges[i];
    const within = Math.max(0, Math.min(edges[i + 1], high) - Math.max(edges[i], low));
    const point = edges[i] >= low && edges[i] <= high ? 1 : 0;
    outside += count * (1 - (width > 0 ? Math.min(1, within / width) : point));
    all += count;
  });
  return all ? outside / all : 0;
}

function histogramFigure(h) {
  const title = element("figcaption", {}, element("span", { class: "name" }, h.name), element("span", { class: "kind" }, h.kind));
  const edges = h.edges.map(number), counts = h.counts.map(number);
  const made = element("figure", { class: "histogram" }, title);
  const clip = h.clip && h.clip.map(number);
  const ok = counts.length && edges.length === counts.length + 1 && edges.every(Number.isFinite) && counts.every((c) => c >= 0);
  if (!ok) {
    made.append(element("p", {}, "Its bins cannot be drawn."));
    return made;
  }
  let left = edges[0], right = edges[edges.length - 1];
  if (clip) for (const at of clip) if (Number.isFinite(at)) { left = Math.min(left, at); right = Math.max(right, at); }
  if (left === right) { left -= Math.abs(left) || 1; right += Math.abs(right) || 1; }
  // The axis ends where its labels stand: the margin only keeps lines at the ends whole.
  const x = (v) => (MARGIN + (1000 - 2 * MARGIN) * (v - left) / (right - left)).toFixed(2);
  const top = Math.log1p(counts.reduce((a, b) => Math.max(a, b), 1));
  let path = `M${x(edges[0])} 100`;
  counts.forEach((count, i) => { path += `V${(100 - 94 * Math.log1p(count) / top).toFixed(2)}H${x(edges[i + 1])}`; });
  const svg = drawing("svg", { role: "img", viewBox: "0 0 1000 100", preserveAspectRatio: "none",
    "aria-label": `Histogram of ${h.name}, ${counts.length} bins` }, drawing("path", { class: "spread", d: `${path}V100Z` }));
  let said = "Not clipped.";
  if (clip && clip.every(Number.isFinite)) {
    const [low, high] = clip.map(x);
    svg.append(drawing("rect", { class: "beyond", x: MARGIN, y: 0, width: Math.max(0, low - MARGIN), height: 100 }),
      drawing("rect", { class: "beyond", x: high, y: 0, width: Math.max(0, 1000 - MARGIN - high), height: 100 }),
      drawing("line", { class: "clip", x1: low, x2: low, y1: 0, y2: 100 }),
      drawing("line", { class: "clip", x1: high, x2: high, y1: 0, y2: 100 }));
    const share = 100 * shareOutside(edges, counts, clip);
    said = `Clipped to ${figure3(clip[0])} … ${figure3(clip[1])}; ` +
      (share === 0 ? "no value is clipped." : `about ${figure3(share)} % of the values are clipped.`);
  }
  made.append(svg, element("div", { class: "axis" }, element("span", {}, figure3(left)),
    element("span", {}, figure3(right))), element("p", {}, said));
  return made;
}

if ($("gallery")) {
  // In order of rising SQNR of the weight of that name.
  const error = new Map(data.rows.map((r) => [r.name, r.sqnr_db === null ? Infinity : r.sqnr_db === "nan" ? -Infinity : number(r.sqnr_db)]));
  const rank = (h) => (error.has(h.name) ? error.get(h.name) : Infinity);
  const order = [...data.histograms].sort((a, b) => (rank(a) < rank(b) ? -1 : rank(a) > rank(b) ? 1 : 0));
  const choice = $("histogram"), few = order.slice(0, 6);
  choice.append(element("option", { value: "" }, order.length > few.length ? `the ${few.length} with the largest error` : "all"));
  order.forEach((h, i) => choice.append(element("option", { value: i }, `${h.name} (${h.kind})`)));
  const show = () => $("gallery").replaceChildren(...(choice.value === "" ? few : [order[choice.value]]).map(histogramFigure));
  choice.addEventListener("input", show);
  show();
}
