/* The state, all of which is in the link, and what follows from it. A change redraws what it names. */

const state = {
  capture: 0, head: 0, query: 0, key: -1, locked: false, hover: false,
  mode: "raw", scope: "head", direction: "to", sort: "layer", view: "both", between: "", full: String(Number(data.full)), room: "", card: false, labels: new Set(), off: new Set(), pins: [], zoom: 0,
};
/** The head that a click chose, while the pointer is on another one; -1 otherwise. */
let kept = -1;
const chosen = () => (kept < 0 ? state.head : kept);
let shown = captures[0];

/** Return what can be shown: a head, alone or under the lines of its layer, or a mean, which maps of no heads do not have. */
const scopes = () => ({ head: "this head", ...(shown.of_heads && { layer: "mean of its layer", all: "mean of all", over: "lines of its layer" }) });
const directions = () => ({ to: shown.verbs[0], from: shown.verbs[1] });
const single = () => state.scope === "head" || state.scope === "over";
/** Return from which region to which links can be shown alone. */
function betweens() {
  const known = [...new Set([...shown.queries.regions, ...shown.keys.regions].map(([name]) => name))].filter(Boolean);
  const pairs = known.length > 1 ? known.flatMap((from) => known.map((to) => `${from} → ${to}`)) : [];
  return Object.fromEntries([["", "all links"], ...pairs.map((pair) => [pair, pair])]);
}
/** Return a map with only those links; the others are not there. */
function filtered(values) {
  const { queries, keys, n, m } = shown, [from, to] = state.between.split(" → ");
  if (!to) return values;
  const names = ({ regions }, count) => Array.from({ length: count }, (_, at) => regions.filter(([, start]) => start <= at).pop()?.[0]);
  const [rows, columns] = [names(queries, n), names(keys, m)];
  return values.map((value, at) => (rows[Math.floor(at / m)] === from && columns[at % m] === to ? value : NaN));
}
/** The weights from which colours are full, and what may have the whole width. */
const FULL = { 1: "1", 0.5: ".5", 0.2: ".2", 0.1: ".1", 0.05: ".05", 0.01: ".01", [Number(data.full)]: data.full }, ROOMS = { "": "", map: "", lines: "" };
const views = () => ({ all: "all heads", both: "heads + one", one: "one head" });
const controls = () => ({ mode: modes(), scope: scopes(), direction: directions(), view: views() });
const PLAIN = [["mode", "raw"], ["scope", "head"], ["direction", "to"], ["sort", "layer"], ["view", Math.max(...shown.heads.head) > 6 && innerWidth > 720 ? "all" : "both"], ["zoom", 0], ["between", ""], ["full", String(Number(data.full))], ["room", ""], ["capture", captures.length > 1 ? -1 : 0]];

/** Return the ways in which the weights of this text can be shown. */
const modes = () => ({
  raw: shown.given,
  ...(shown.sinks.size && !shown.limit && { sinkless: "without sink" }),
  ...(shown.moved && { value: "× value norm" }),
});

/** Write the view as the address; a step that Back returns from is one of its own. */
function writeLink() {
  const { names } = shown, parts = [encodeURIComponent(names[chosen()]), `q=${state.query}`];
  if (state.key >= 0) parts.push(`k=${state.key}`);
  if (state.locked) parts.push("lock");
  for (const [name, plain] of PLAIN) if (state[name] !== plain) parts.push(`${name}=${encodeURIComponent(state[name])}`);
  if (state.pins.length) parts.push("pins=" + state.pins.map((head) => encodeURIComponent(names[head])));
  if (state.off.size) parts.push("off=" + [...state.off].map((head) => encodeURIComponent(names[head])));
  if (state.labels.size) parts.push("labels=" + [...state.labels].map(encodeURIComponent));
  const link = "#" + parts.join("&"), step = set.step && link !== location.hash;
  set.step = false;
  try { history[step ? "pushState" : "replaceState"](null, "", link); } catch { /* a frame without an address */ }
}

/** Return a text of a link, or itself where it is no code. */
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** Take over what a link asks for, as far as it is there. */
async function readLink(link) {
  const parts = link.replace(/^#/, "").split("&").map((part) => part.split("="));
  const given = new Map(parts);
  const number = (name, most) => {
    const value = parseInt(given.get(name), 10);
    return value >= 0 && value <= most ? value : null;
  };
  const list = (name) => (given.get(name) ?? "").split(",").map(decoded);
  state.capture = number("capture", captures.length - 1) ?? state.capture;
  shown = await captures[state.capture].open();
  kept = -1;
  if (given.has("capture")) Object.assign(state, shown.view);
  if (given.has("q")) for (const [name, plain] of PLAIN) if (name !== "capture") state[name] = plain; // a whole view
  const at = (name) => shown.names.indexOf(name);
  const named = at(decoded(parts[0][0]));
  if (named >= 0 && named !== state.head) Object.assign(state, { head: named, key: -1 });
  state.query = number("q", shown.n - 1) ?? Math.min(state.query, shown.n - 1);
  state.key = number("k", shown.m - 1) ?? Math.min(state.key, shown.m - 1);
  state.locked = given.has("lock");
  state.zoom = number("zoom", 12) ?? 0;
  for (const [name, known] of Object.entries({ ...controls(), sort: orders(), between: betweens(), full: FULL, room: ROOMS })) {
    const value = decoded(given.get(name) ?? "?");
    if (Object.hasOwn(known, value)) state[name] = value;
  }
  if (given.has("q") || given.has("pins")) state.pins = [...new Set(list("pins").map(at).filter((head) => head >= 0))].slice(0, 5);
  state.off = new Set(list("off").map(at).filter((head) => head >= 0));
  state.labels = new Set(list("labels").filter((name) => data.labels.some((label) => label.name === name)));
}

/** Return the heads whose mean is shown. */
const heads = () =>
  single() ? [state.head]
    : [...shown.names.keys()].filter((i) => state.scope === "all" || shown.heads.layer[i] === shown.heads.layer[state.head]);
const current = () => filtered(shown.map(heads(), state.mode));
const weight = (i, j, values = current()) => values[i * shown.m + j];
/** Return the cell nearest to a place: within the map, and no key after a causal query. */
function nearest(query, key) {
  const within = (at, count) => Math.max(0, Math.min(count - 1, at)), row = within(query, shown.n);
  return { query: row, key: within(key, Math.min(shown.m, shown.seen(row))) };
}
const axis = () => (state.direction === "to" ? shown.queries : shown.keys);
const active = () => (state.direction === "to" ? state.query : Math.max(0, state.key));
const told = (value, digits) => share(value, digits, Boolean(shown.limit));
const exact = () => heads().every((head) => shown.exact(head));

/** Return a weight as it may be read: with its digits, or about, with how far it can be off. */
function read(value, i, j) {
  const chosen = heads();
  if (exact()) return told(value, 4);
  const error = Math.max(...chosen.map((head) => shown.error(head, state.mode, i, j)));
  return `≈ ${told(value)} ± ${share(error, 3)}`;
}

/** Return how strong a value is, from 0 to 1, whatever its sign. */
const strength = (value) => (shown.limit ? Math.min(1, Math.abs(value) / shown.limit) : value);

/** Return every link of the active token: [place on the other side, weight], strongest first. */
function links(values = current()) {
  const found = [], { query, key, direction } = state;
  if (direction === "to") for (let j = 0; j < shown.m; j++) found.push([j, weight(query, j, values)]);
  else for (let i = 0; i < shown.n; i++) found.push([i, weight(i, Math.max(0, key), values)]);
  return found.filter(([, value]) => value === value).sort((a, b) => strength(b[1]) - strength(a[1]));
}

const due = new Set();

/** Redraw the named views once, with the next frame. */
function redraw(...views) {
  if (!due.size) requestAnimationFrame(drawDue);
  views.forEach((view) => due.add(view));
}

/** Draw what is due, in as many tasks as it takes: each lasts some milliseconds, so that the pointer is answered. */
function drawDue() {
  const until = performance.now() + 8;
  for (const view of Object.keys(DRAW)) {
    if (due.delete(view)) DRAW[view]();
    if (due.size && performance.now() > until) return void setTimeout(drawDue);
  }
}

function set(changes, ...views) {
  Object.assign(state, changes);
  redraw(...views);
  clearTimeout(set.timer);
  set.timer = setTimeout(writeLink, 200);
}

const choose = (head) => {
  kept = -1;
  set({ head }, "head");
};

/** Show a head while the pointer is on it; without one the chosen head comes back. */
function preview(head = kept) {
  if (head < 0 || head === state.head) return;
  const before = chosen();
  set({ head }, "head");
  kept = head === before ? -1 : before;
}

/** Give the map or the lines the whole width, or both half of it. */
const setRoom = (room) => set({ room: state.room === room ? "" : room }, "head");

/** Show all heads over the whole width, or heads beside one, or one alone: a step that Back returns from. */
function setView(view) {
  set({ head: chosen(), view, card: false }, "grid", "head");
  kept = -1;
  set.step = true;
}
