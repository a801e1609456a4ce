/* All heads: buttons in a grid, with their maps on one canvas behind them. */

let cells = [];
const sheet = make("canvas", { "aria-hidden": true }), scratch = document.createElement("canvas");
const measures = () => data.measures.filter((measure) => shown.heads.values?.[measure.key]);
const orders = () => ({
  layer: "layer", ...(data.labels.some(({ said }) => said) && { label: "label", score: "score" }),
  ...Object.fromEntries(measures().map((measure) => [measure.key, measure.said])),
});

function sorted() {
  const { label, score, values } = shown.heads, places = [...shown.names.keys()], by = state.sort;
  const rank = (i) => (data.labels[label[i]].colours ? 0 : 1e3) + label[i];
  const strength = (i) => score[i] ?? -1;
  if (by === "label") places.sort((a, b) => rank(a) - rank(b) || strength(b) - strength(a));
  else if (by === "score") places.sort((a, b) => strength(b) - strength(a));
  else if (by !== "layer") places.sort((a, b) => (values[by][b] ?? -Infinity) - (values[by][a] ?? -Infinity));
  return places;
}
const passes = (head) => !state.labels.size || state.labels.has(shown.label(head).name);
const offered = () => (state.sort === "layer" ? sorted() : sorted().filter(passes));

/** Return a head's number of a measure, in words. */
const amount = ({ key, unit, signed: sign }, head, value = shown.heads.values[key][head]) =>
  value == null ? "–" : (sign ? signed(value) : share(value)) + (unit && " " + unit);

function drawGrid() {
  const grid = $("grid"), { layer, head } = shown.heads, byLayer = state.sort === "layer";
  const columns = Math.max(...head) + 1, width = columns > 4 ? 680 : 240, room = (paper ? width : grid.clientWidth) - 10, gap = columns > 24 ? 1 : columns > 14 ? 2 : 4;
  const across = Math.floor((room - 26) / columns) - gap, down = (paper ? 880 : innerHeight - 290) / (Math.max(...layer) + 1), words = paper ? 34 : 42;
  const tight = paper && down < words + 30, fitted = tight ? down - 8 : Math.max(paper ? 0 : 54, down - words); // a sheet has all rows
  const side = byLayer ? Math.max(6, Math.floor(Math.min(96, across, fitted))) : 64, small = byLayer && (tight || side < (paper ? 30 : 44));
  grid.classList.toggle("small", small);
  $("app").classList.toggle("wide", paper && columns > 4);
  grid.style.gap = `${gap}px`;
  grid.style.gridTemplateRows = small ? "14px" : "";
  const ranked = paper ? `repeat(${Math.floor(room / 56)}, 52px)` : "repeat(auto-fill, minmax(64px, 1fr))"; // a sheet has another width
  grid.style.gridTemplateColumns = byLayer ? `1.6rem repeat(${columns}, ${side}px)` : ranked;
  cells = [];
  const nodes = [], every = Math.ceil(18 / side), rows = Math.ceil(10 / side);
  if (small) {
    nodes.push(make("span"));
    for (let h = 0; h < columns; h++) nodes.push(make("span", { "aria-hidden": true }, h % every ? "" : String(h + shown.first)));
  }
  const by = measures().find(({ key }) => key === state.sort);
  let row = -1;
  for (const i of offered()) {
    if (byLayer && layer[i] !== row) {
      row = layer[i];
      const name = make("span", { "aria-hidden": true }, shown.of_heads && row % rows === 0 ? shown.names[i].split("H")[0] : "");
      name.style.gridColumn = "1";
      nodes.push(name);
    }
    const extra = by && amount(by, i);
    const score = shown.heads.score[i], { said, short } = shown.label(i);
    const second = extra ?? (score == null ? said : `${short} ${share(score)}`);
    const about = [small && shown.names[i], shown.said(i), extra && `${orders()[state.sort]} ${extra}`].filter(Boolean).join(", ");
    const look = { title: about, tabindex: -1, "--hue": hueOf(i) };
    const cell = make("button", { ...look, onclick: () => choose(i) },
      make("i"), ...(small ? [] : [make("small", {}, shown.names[i]), " ", make("small", {}, second)]));
    if (byLayer) cell.style.gridColumn = String(head[i] + 2);
    cell.classList.toggle("off", byLayer && !passes(i));
    nodes.push(cells[i] = cell);
  }
  const focused = grid.contains(document.activeElement);
  grid.replaceChildren(sheet, ...nodes);
  $("heads-title").textContent = shown.of_heads ? "Heads" : "Maps";
  const passing = shown.names.filter((_, i) => passes(i)).length;
  $("count").textContent = passing === shown.count ? `${shown.count}` : `${passing} of ${shown.count}`;
  markCells(focused);
  drawThumbs();
}

/** Paint the thumbnails on one sheet behind the buttons, some milliseconds a frame; on paper at once. */
function drawThumbs() {
  const turn = (drawThumbs.turn = {}), values = new Float32Array(shown.n * shown.m), grid = $("grid");
  const ratio = paper ? 4 : Math.min(2, devicePixelRatio || 1), waiting = offered().filter((i) => cells[i]);
  const most = (edge, size) => Math.max(1, ...waiting.map((i) => cells[i][edge] + cells[i][size]));
  const wide = most("offsetLeft", "offsetWidth"), high = most("offsetTop", "offsetHeight");
  sheet.width = wide * ratio;
  sheet.height = high * ratio;
  sheet.style.width = wide + "px";
  sheet.style.height = high + "px";
  const pen = sheet.getContext("2d");
  pen.imageSmoothingEnabled = false;
  const places = new Map(waiting.map((i) => [i, [cells[i].offsetLeft, cells[i].offsetTop, cells[i].clientWidth]]));
  const step = () => {
    if (drawThumbs.turn !== turn) return;
    const until = paper ? Infinity : performance.now() + 12;
    while (waiting.length && performance.now() < until) {
      const i = waiting.shift(), [x, y, side] = places.get(i).map((length) => Math.round(length * ratio));
      const words = shown.limit ? colour.signed : colour.thumbs[shown.heads.label[i]];
      paint(scratch, picture(shown.fill(i, state.mode, values), shown.n, shown.m, words, side));
      pen.globalAlpha = passes(i) ? 1 : 0.2;
      pen.fillStyle = colour.panel;
      pen.fillRect(x, y, side, side);
      pen.drawImage(scratch, x, y, side, side);
    }
    if (waiting.length) requestAnimationFrame(step);
    else document.body.dataset.painted ??= performance.now().toFixed(0);
  };
  if (paper) step();
  else requestAnimationFrame(step);
}

/** Mark the chosen and the pinned heads; the focus follows the chosen one, if it is or was in the grid. */
function markCells(focused = $("grid").contains(document.activeElement)) {
  const others = pinned();
  cells.forEach((cell, i) => {
    const on = i === state.head;
    cell.classList.toggle("on", on);
    cell.setAttribute("aria-pressed", on);
    cell.tabIndex = on ? 0 : -1;
    cell.classList.toggle("pinned", state.pins.includes(i));
    cell.style.setProperty("--series", seriesColour(others.indexOf(i) + 1));
  });
  const cell = cells[state.head], grid = $("grid"), reached = cell ?? cells.find(Boolean);
  if (reached) reached.tabIndex = 0;
  if (focused) reached?.focus({ preventScroll: true });
  if (!cell) return;
  if (cell.offsetTop < grid.scrollTop) grid.scrollTop = cell.offsetTop - 24;
  const below = cell.offsetTop + cell.offsetHeight - grid.scrollTop - grid.clientHeight;
  if (below > 0) grid.scrollTop += below + 8;
}

/** Where a label comes from: two texts may know the same name from different evidence. */
const SOURCES = {
  card: "from the model card", patterns: "measured by attnviz patterns",
  text: "from enough events of this text", none: "describes this text only, no finding about the head",
};
const evidence = ({ means, source }) => [means, SOURCES[source]].filter(Boolean).join("; ");

function drawLegend() {
  const known = new Map();
  for (const at of shown.heads.label) {
    const label = data.labels[at], chip = known.get(label.name) ?? { label, at, count: 0, tips: new Set() };
    chip.count++;
    chip.tips.add(evidence(label));
    if (label.said) known.set(label.name, chip);
  }
  const order = [...known.values()].sort((a, b) => Number(!a.label.colours) - Number(!b.label.colours) || b.count - a.count);
  refill($("legend"), ...order.map(({ label: { name, said }, at, count, tips }) => make("button", {
    title: [...tips].join(" · "), "--hue": colour.labels[at], "aria-pressed": state.labels.has(name),
    onclick: () => { if (!state.labels.delete(name)) state.labels.add(name); set({}, "legend", "grid"); },
  }, make("i"), `${said} ${count}`)));
  options($("sort"), orders(), state.sort);
  $("sort").parentNode.hidden = $("sort").length < 2;
}
