/* The keyboard: everything that a pointer can do. */

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function stepHead(by) {
  const order = offered().filter(passes), at = order.indexOf(chosen());
  if (order.length) choose(order[(at + by + order.length) % order.length]);
}

/** The neighbour of the chosen head in the picture of all heads. */
function neighbour(key) {
  const { layer, head } = shown.heads, now = chosen();
  if (state.sort !== "layer") {
    const order = offered(), at = order.indexOf(now);
    const columns = getComputedStyle($("grid")).gridTemplateColumns.split(" ").length;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    return order[Math.max(0, Math.min(order.length - 1, at + by))];
  }
  const by = ARROWS[key];
  const found = shown.names.findIndex((_, i) => layer[i] === layer[now] + by[0] && head[i] === head[now] + by[1]);
  return found < 0 ? now : found;
}

function moveToken(key) {
  const [down, right] = ARROWS[key], query = state.query + down;
  return nearest(query, state.key < 0 ? query : state.key + right);
}

function onKey(event) {
  const { key, target } = event, inside = (id) => $(id).contains(target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("select, input") || $("keys").open) return;
  const arrow = key.startsWith("Arrow");
  if (arrow && (inside("grid") || target === document.body)) {
    choose(neighbour(key));
  } else if (arrow && inside("map")) { set({ ...moveToken(key), hover: true }, "token"); }
  else if (arrow && (inside("lines") || inside("words"))) {
    const by = key === "ArrowUp" || key === "ArrowLeft" ? -1 : 1, most = state.direction === "to" ? shown.n : shown.m;
    const at = Math.max(0, Math.min(most - 1, active() + by));
    set({ [state.direction === "to" ? "query" : "key"]: at, hover: true }, "token");
  } else if ((key === "Enter" || key === " ") && (inside("map") || inside("lines") || inside("words"))) lock(true);
  else if (key === "PageUp" || key === "PageDown") {
    if (!inside("grid") && target !== document.body) return;
    choose(neighbour(key === "PageUp" ? "ArrowUp" : "ArrowDown"));
  }
  else if (KEYS[key]) KEYS[key][1]();
  else return;
  event.preventDefault();
}

/** Let go of what a click holds, of a head that is looked into, of one that stands alone, of the pinned heads. */
function letGo() {
  if (!state.locked && (kept >= 0 || state.card)) {
    state.card = false;
    return choose(chosen());
  }
  if (!state.locked && state.view === "one") return setView("both");
  const key = state.direction === "to" ? -1 : state.key;
  set({ hover: false, ...(state.locked ? { locked: false, key } : { pins: [] }) }, "head");
}

/** Zoom the map, or all heads where they are the view. */
function zoom(by) {
  if (state.view !== "all" || $("pictures").contains(document.activeElement)) return zoomBy(by);
  some.zoom = by ? Math.max(0, Math.min(4, some.zoom + by)) : 0;
  redraw("grid");
}

function following(choices, now) {
  const all = Object.keys(choices);
  return all[(all.indexOf(now) + 1) % all.length];
}

const KEYS = {
  j: ["next head, in the order that is shown", () => stepHead(1)],
  k: ["previous head", () => stepHead(-1)],
  p: ["pin the head: its lines stay", () => togglePin()],
  w: ["weights: raw, without sink, × value norm", () => setMode(following(modes(), state.mode))],
  s: ["this head, the mean of its layer, of all heads", () => set({ scope: following(scopes(), state.scope) }, "head")],
  c: ["the next text, at the same head", () => switchTo((state.capture + 1) % captures.length)],
  r: ["attends to, is attended by", () => setDirection(following(directions(), state.direction))],
  o: ["order of the heads", () => { set({ sort: following(orders(), state.sort) }, "legend", "grid"); }],
  "+": ["zoom in", () => zoom(1)], "-": ["zoom out", () => zoom(-1)], 0: ["whole map", () => zoom(0)],
  m: ["all heads over the whole width, heads beside one, one head alone", () => setView(following(views(), state.view))],
  f: ["map, lines or both over the whole width", () => set({ room: following(ROOMS, state.room) }, "head")],
  t: ["table of the weights", () => { $("weights").open = !$("weights").open; }],
  d: ["light or dark", toggleTheme],
  Escape: ["let go of what a click holds; unpin all", letGo],
  "?": ["this list", () => $("keys").showModal()],
};
