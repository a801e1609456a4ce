/* The chosen head: its name, its evidence, the controls, and what a pointer looks at. */

/** Return the pinned heads whose lines stand next to the chosen ones, in the order of their colours. */
const pinned = () => state.pins.filter((head) => state.scope !== "head" || head !== state.head);
const seriesColour = (at) => colour.hues[at % colour.hues.length];

/** Return the name of what is shown. known: how many of the heads are in the mean. */
function scopeName(known, total) {
  const name = shown.names[state.head], part = known < total ? `, ${known} of ${total} heads` : "";
  return { head: name, layer: `Mean of ${name.split("H")[0]}${part}`, all: part ? `Mean${part}` : `Mean of ${total} heads` }[state.scope];
}

/** Add heads to the mean that is shown, some milliseconds a frame, and draw it now and then. */
function reckon() {
  const turn = (reckon.turn = {}), chosen = heads(), until = performance.now() + 300;
  const step = (later) => {
    if (reckon.turn !== turn) return;
    const pause = paper ? Infinity : performance.now() + 12;
    let { known } = shown.mean(chosen, state.mode);
    while (known < chosen.length && performance.now() < pause) known = shown.add(chosen, state.mode);
    $("name").textContent = scopeName(known, chosen.length);
    if (known < chosen.length && performance.now() < until) setTimeout(step, 0, true);
    else if (later) redraw("head");
  };
  step(false);
}

function drawHead() {
  const { head } = state, label = shown.label(head);
  reckon();
  const scope = $("name").textContent;
  $("what").replaceChildren();
  if (state.scope === "head") {
    const facts = shown.heads.facts[head];
    $("what").append(make("i", { "--hue": hueOf(head), title: evidence(label) }, shown.said(head)));
    if (facts) $("what").append(make("span", { class: "soft" }, ` · ${facts}`.slice(shown.said(head) ? 0 : 3)));
  }
  $("pin").textContent = state.pins.includes(head) ? "Unpin" : "Pin";
  $("pin").setAttribute("aria-pressed", state.pins.includes(head));
  const chosen = make("button", { "--hue": seriesColour(0), "aria-label": `${scope}, chosen` }, make("i"), scope);
  refill($("pins"), ...(state.pins.length ? [chosen] : []), ...pinned().map((one, at) => make("button", {
    "--hue": seriesColour(at + 1), title: shown.said(one), "aria-label": `${shown.names[one]}, unpin`,
    onclick: () => togglePin(one),
  }, make("i"), `${shown.names[one]} ×`)));
  const turn = { mode: setMode, direction: setDirection, scope: (scope) => set({ scope }, "head") };
  for (const [id, choices] of Object.entries(controls())) {
    const field = $(id);
    field.hidden = Object.keys(choices).length < 2;
    refill(field, field.firstElementChild, ...Object.entries(choices).map(([value, said]) =>
      make("button", { "aria-pressed": state[id] === value, onclick: () => turn[id](value) }, said)));
  }
  markCells();
  makeWords();
  drawBeside();
  const above = $("map").getBoundingClientRect().top + scrollY;
  $("pictures").style.setProperty("--room", Math.max(380, innerHeight - above - 64) + "px");
  mapView.image = null;
  drawToken();
  if ($("weights").open) drawWeights();
}

function togglePin(head = state.head) {
  const pins = state.pins.includes(head) ? state.pins.filter((one) => one !== head) : [...state.pins, head].slice(-5);
  set({ pins }, "head");
}
const setMode = (mode) => set({ mode }, "thumbs", "head");
function setDirection(direction) {
  set({ direction, key: state.key < 0 ? Math.min(state.query, shown.m - 1) : state.key }, "head");
}

/** Look at a cell, a query or a key, unless a click holds the view. */
function look({ query = state.query, key = -1, direction = state.direction }, held = false) {
  if (state.locked && !held) return;
  const changed = direction !== state.direction;
  set({ query, key, direction, hover: true }, changed ? "head" : "token");
}
function lock(same) {
  set({ locked: !(state.locked && same), hover: true }, "token");
}

function drawToken() {
  shadeWords();
  drawTop();
  drawStep();
  tellBeside();
  drawMap();
  drawLines();
  keepInView();
  drawNeuron();
}
