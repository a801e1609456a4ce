/* All heads: buttons in a grid, with their maps on one canvas behind them. */

let cells = [], marked = { of: null, heads: new Set() };
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
/** The layers, and from how many on they are chosen by a strip, which shows some of them. */
const layersOf = () => [...new Set(shown.heads.layer)], MANY = 24, SOME = 12;
/** The most heads that a phone has in one strip. */
const STRIP = 160;
const some = { part: -1, zoom: 0 };
const within = (head) => some.part < 0 || Math.floor(layersOf().indexOf(shown.heads.layer[head]) / SOME) === some.part;
const offered = () => (state.sort === "layer" ? sorted() : sorted().filter(passes)).filter(within);

function drawLayers() {
  const all = layersOf(), parts = [-1, ...Array(Math.ceil(all.length / SOME)).keys()];
  $("layers").hidden = state.view !== "all" || all.length <= MANY || paper;
  if ($("layers").hidden) some.part = -1;
  else refill($("layers"), ...parts.map((part) => make("button", {
    "aria-pressed": part === some.part, onclick: () => { some.part = part; redraw("grid"); },
  }, part < 0 ? "all layers" : [part * SOME, Math.min(all.length, (part + 1) * SOME) - 1].map((at) => shown.names[shown.heads.layer.indexOf(all[at])].split("H")[0]).join("–"))));
}

/** Return a head's number of a measure, in words. */
const amount = ({ key, unit, signed: sign }, head, value = shown.heads.values[key][head]) =>
  value == null ? "–" : (sign ? signed(value) : share(value)) + (unit && " " + unit);

function drawGrid() {
  const grid = $("grid"), { layer, head } = shown.heads, strip = innerWidth <= 720 && shown.count <= STRIP && !paper;
  const byLayer = state.sort === "layer" && !strip, large = state.view === "all" && !paper;
  for (const name of Object.keys(views())) $("app").classList.toggle(name, state.view === name && !paper);
  drawLayers();
  const columns = Math.max(...head) + 1, width = columns > 4 ? 680 : 240, room = (paper ? width : grid.clientWidth) - 10, gap = columns > 24 ? 1 : columns > 14 || large ? 2 : 4;
  const across = Math.floor((room - 26) / columns) - gap, down = (paper ? 880 : innerHeight - 290) / (Math.max(...layer) + 1), below = paper ? 34 : 42;
  const tight = paper && down < below + 30, fitted = tight ? down - 8 : Math.max(paper ? 0 : 54, down - below); // a sheet has all rows
  const top = grid.getBoundingClientRect().top + scrollY, rows = new Set(offered().map((i) => layer[i])).size;
  grid.style.maxHeight = large ? Math.max(320, innerHeight - top - 16) + "px" : "";
  const largest = Math.max(60, Math.min((across > 88 ? across - 30 : across), (innerHeight - top - 24) / rows - gap, 160));
  const side = large ? Math.floor(Math.min(largest, Math.max(across, 24)) * 1.5 ** some.zoom) : byLayer ? Math.max(6, Math.floor(Math.min(96, across, fitted))) : 64;
  const small = byLayer && (large ? side < 56 : tight || side < (paper ? 30 : 44)), words = large && !small ? Math.max(some.zoom ? 36 : 30, across - side) : 0;
  grid.classList.toggle("small", small);
  $("app").classList.toggle("wide", paper && columns > 4);
  grid.classList.toggle("strip", strip);
  grid.style.gap = `${gap}px`;
  grid.style.gridTemplateRows = small ? "14px" : "";
  const ranked = paper ? `repeat(${Math.floor(room / 56)}, 52px)` : `repeat(auto-fill, minmax(${large ? side + 42 : 64}px, 1fr))`; // a sheet has another width
  grid.style.gridTemplateColumns = strip ? "none" : byLayer ? `1.6rem repeat(${columns}, ${side + words}px)` : ranked;
  grid.style.setProperty("--side", side + "px");
  cells = [];
  const told = (document.querySelector("h1")?.textContent?.match(/\bL\d+H\d+\b/g) ?? []).map(String); // heads that the finding names
  const nodes = [], every = Math.ceil(18 / side), fewer = Math.ceil(10 / side);
  if (small) {
    nodes.push(make("span"));
    for (let h = 0; h < columns; h++) nodes.push(make("span", { "aria-hidden": true }, h % every ? "" : String(h + shown.first)));
  }
  const by = measures().find(({ key }) => key === state.sort);
  let row = -1;
  for (const i of offered()) {
    if (byLayer && layer[i] !== row) {
      row = layer[i];
      const name = make("span", { "aria-hidden": true }, shown.of_heads && row % fewer === 0 ? shown.names[i].split("H")[0] : "");
      name.style.gridColumn = "1";
      nodes.push(name);
    }
    const extra = by && amount(by, i);
    const score = shown.heads.score[i], { said, short } = shown.label(i);
    const second = extra ?? (score == null ? said : `${short} ${share(score)}`);
    const about = [small && shown.names[i], shown.said(i), extra && `${orders()[state.sort]} ${extra}`].filter(Boolean).join(", ");
    const look = { title: about, tabindex: -1, "--hue": hueOf(i) };
    const name = words && words < 44 && byLayer ? shown.names[i].replace(/^L\d+/, "") : shown.names[i];
    const cell = make("button", { ...look, "data-head": i }, make("i"), ...(small ? [] : [make("small", {}, name), " ", make("small", {}, second)]));
    cell.classList.toggle("found", Boolean(isFound(i)) || told.includes(shown.names[i]));
    if (byLayer) cell.style.gridColumn = String(head[i] + 2);
    cell.classList.toggle("off", byLayer && !passes(i));
    nodes.push(cells[i] = cell);
  }
  const focused = grid.contains(document.activeElement);
  grid.replaceChildren(sheet);
  $("heads-title").textContent = shown.of_heads ? "Heads" : "Maps";
  const passing = shown.names.filter((_, i) => passes(i)).length;
  $("count").textContent = passing === shown.count ? `${shown.count}` : `${passing} of ${shown.count}`;
  const turn = (drawGrid.turn = {}), put = () => { // some a frame
    if (drawGrid.turn !== turn) return;
    grid.append(...nodes.splice(0, paper ? nodes.length : 200));
    if (nodes.length) return setTimeout(put);
    markCells(focused);
    if (paper) drawThumbs();
    else redraw("thumbs");
  };
  put();
}

/** Paint the thumbnails on one sheet behind the buttons, some milliseconds a frame; on paper at once. */
function drawThumbs() {
  const turn = (drawThumbs.turn = {}), values = new Float32Array(shown.n * shown.m), grid = $("grid");
  const waiting = offered().filter((i) => cells[i]);
  const most = (edge, size) => Math.max(1, ...waiting.map((i) => cells[i][edge] + cells[i][size]));
  const wide = most("offsetLeft", "offsetWidth"), high = most("offsetTop", "offsetHeight");
  const ratio = paper ? 4 : Math.min(2, devicePixelRatio || 1, Math.sqrt(16e6 / (wide * high))); // what browsers hold
  sheet.width = wide * ratio;
  sheet.height = high * ratio;
  sheet.style.width = wide + "px";
  sheet.style.height = high + "px";
  const pen = sheet.getContext("2d");
  pen.imageSmoothingEnabled = false;
  const places = new Map(waiting.map((i) => [i, [cells[i].offsetLeft, cells[i].offsetTop, cells[i].firstChild.clientWidth]]));
  const step = () => {
    if (drawThumbs.turn !== turn) return;
    const until = paper ? Infinity : performance.now() + 12;
    while (waiting.length && performance.now() < until) {
      const i = waiting.shift(), [x, y, side] = places.get(i).map((length) => Math.round(length * ratio));
      const words = shown.limit ? colour.signed : colour.thumbs[shown.heads.label[i]];
      paint(scratch, panes.length ? patchImage(i, words) : picture(shown.fill(i, state.mode, values), shown.n, shown.m, words, side));
      const part = panes.length ? side / Math.max(scratch.width, scratch.height) : 0, fitted = part ? [scratch.width * part, scratch.height * part] : [side, side];
      pen.globalAlpha = passes(i) ? 1 : 0.2;
      pen.fillStyle = colour.panel;
      pen.fillRect(x, y, side, side);
      pen.drawImage(scratch, x, y, ...fitted);
      if (isFound(i) && !part) {
        const step = side / Math.max(shown.n, shown.m), size = Math.max(step, 6 * ratio), at = (place) => (place + 0.5) * step - size / 2;
        pen.strokeStyle = colour.ink;
        pen.lineWidth = 1.5 * ratio;
        pen.strokeRect(x + at(finding.key), y + at(finding.query), size, size);
      }
    }
    if (waiting.length) setTimeout(step);
    else document.body.dataset.painted ??= performance.now().toFixed(0);
  };
  if (paper) step();
  else setTimeout(step);
}

/** Mark the chosen and the pinned heads; the focus follows the chosen one, if it is or was in the grid. */
function markCells(focused = $("grid").contains(document.activeElement)) {
  const others = pinned(), now = new Set([chosen(), state.head, ...state.pins]);
  const marks = new Set([...now, ...(marked.of === cells ? marked.heads : cells.keys())]);
  marked = { of: cells, heads: now };
  for (const i of marks) {
    const cell = cells[i], on = i === chosen();
    if (!cell) continue;
    cell.classList.toggle("on", on);
    cell.classList.toggle("seen", kept >= 0 && i === state.head);
    cell.setAttribute("aria-pressed", on);
    cell.tabIndex = on ? 0 : -1;
    cell.classList.toggle("pinned", state.pins.includes(i));
    if (others.includes(i)) cell.style.setProperty("--series", seriesColour(others.indexOf(i) + 1));
  }
  const cell = cells[chosen()], grid = $("grid"), reached = cell ?? cells.find(Boolean);
  if (reached) reached.tabIndex = 0;
  if (focused) reached?.focus({ preventScroll: true });
  $("app").classList.toggle("peek", state.view === "all" && (kept >= 0 || Boolean(state.card)));
  if (!cell || kept >= 0) return;
  if (cell.offsetTop < grid.scrollTop) grid.scrollTop = cell.offsetTop - 24;
  const below = cell.offsetTop + cell.offsetHeight - grid.scrollTop - grid.clientHeight;
  if (below > 0) grid.scrollTop += below + 8;
  const beside = cell.offsetLeft + cell.offsetWidth - grid.scrollLeft - grid.clientWidth;
  if (beside > 0 || cell.offsetLeft < grid.scrollLeft + 26) grid.scrollLeft = cell.offsetLeft - grid.clientWidth / 2;
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
  refill($("legend"), ...order.map(({ label: { name, said, short }, at, count, tips }) => make("button", {
    title: [...tips].join(" · "), "--hue": colour.labels[at], "aria-pressed": state.labels.has(name),
    onclick: () => { if (!state.labels.delete(name)) state.labels.add(name); set({}, "legend", "grid"); },
  }, make("i"), `${said}${said.startsWith(short) ? "" : ` (${short})`} ${count}`)));
  options($("sort"), orders(), state.sort);
  $("sort").parentNode.hidden = $("sort").length < 2;
}
