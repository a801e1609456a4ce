/* The chosen head: its name, its evidence, the controls, and what a pointer looks at. */

const inLayer = () => [...shown.names.keys()].filter((i) => shown.heads.layer[i] === shown.heads.layer[state.head]);
/** Return the heads whose lines stand next to the chosen ones: the pinned ones, or those of the layer that are not switched off. */
const pinned = () => state.scope === "over" ? inLayer().filter((head) => head !== state.head && !state.off.has(head))
  : state.pins.filter((head) => state.scope !== "head" || head !== state.head);
/** Return the colour of a head's lines: that of its label, or its own among those of its layer. */
function lineColour(head) {
  const layer = inLayer(), light = document.documentElement.dataset.theme === "dark" ? 66 : 42;
  return state.scope === "over" ? `hsl(${(layer.indexOf(head) * 360) / layer.length} 70% ${light}%)` : hueOf(head);
}
const seriesColour = (at) => (at ? lineColour(pinned()[at - 1]) : single() ? lineColour(state.head) : colour.ink);

/** Return the name of what is shown. known: how many of the heads are in the mean. */
function scopeName(known, total) {
  const name = shown.names[state.head], part = known < total ? `, ${known} of ${total} heads` : "";
  return { head: name, over: name, layer: `Mean of ${name.split("H")[0]}${part}`, all: part ? `Mean${part}` : `Mean of ${total} heads` }[state.scope];
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
  if (single()) {
    const facts = shown.heads.facts[head];
    $("what").append(make("i", { "--hue": hueOf(head), title: evidence(label) }, shown.said(head)));
    if (facts) $("what").append(make("span", { class: "soft" }, ` · ${facts}`.slice(shown.said(head) ? 0 : 3)));
  }
  $("pin").textContent = state.pins.includes(head) ? "Unpin" : "Pin";
  $("pin").setAttribute("aria-pressed", state.pins.includes(head));
  const chosen = make("button", { "--hue": seriesColour(0), "aria-label": `${scope}, chosen` }, make("i"), scope);
  options($("between"), betweens(), state.between);
  $("between").hidden = $("between").length < 2;
  if (state.scope === "over") refill($("pins"), ...inLayer().map((one) => make("button", {
    "--hue": lineColour(one), title: shown.said(one), "aria-pressed": one === head || !state.off.has(one),
    onclick: ({ detail }) => { // a second click in time: this head alone
      const alone = { head: one, off: new Set(inLayer().filter((other) => other !== one)) };
      if (detail < 2 && one !== head && !state.off.delete(one)) state.off.add(one);
      set(detail > 1 ? alone : {}, "head");
    },
  }, make("i"), shown.names[one])));
  else refill($("pins"), ...(state.pins.length ? [chosen] : []), ...pinned().map((one, at) => make("button", {
    "--hue": seriesColour(at + 1), title: shown.said(one), "aria-label": `${shown.names[one]}, unpin`,
    onclick: () => togglePin(one),
  }, make("i"), `${shown.names[one]} ×`)));
  const turn = { mode: setMode, direction: setDirection, view: setView, scope: (scope) => set({ scope }, "head") };
  for (const [id, choices] of Object.entries(controls())) {
    const field = $(id);
    field.hidden = Object.keys(choices).length < 2;
    refill(field, field.firstElementChild, ...Object.entries(choices).map(([value, said]) =>
      make("button", { "aria-pressed": state[id] === value, onclick: () => turn[id](value) }, said)));
  }
  markCells();
  makeWords();
  makePictures();
  drawBeside();
  drawRegions();
  for (const name of Object.keys(ROOMS).filter(Boolean)) {
    $("pictures").classList.toggle(name, state.room === name);
    $(`wide-${name}`).setAttribute("aria-pressed", state.room === name);
  }
  const above = $("map").getBoundingClientRect().top + scrollY;
  $("pictures").style.setProperty("--room", (state.view === "all" ? 300 : Math.max(380, innerHeight - (state.room ? 120 : above + 64))) + "px");
  mapView.image = null;
  drawToken();
  if ($("weights").open) drawWeights();
}

function togglePin(head = state.head) {
  const pins = state.pins.includes(head) ? state.pins.filter((one) => one !== head) : [...state.pins, head].slice(-5);
  set({ pins }, "head");
}
/** The place that the finding names: what is marked with its number in the map, the text and among the heads. */
const isNamed = (text, head) => text.split(head).slice(1).some((rest) => !/^\d/.test(rest));
const finding = data.look.find(({ capture, head }) => isNamed(document.querySelector("h1").textContent, captures[capture].names[head]));
const isFound = (head) => finding && captures[finding.capture] === shown && finding.head === head;
const found = () => (single() && state.mode === "raw" && isFound(state.head) ? finding : null);
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
  drawPictures();
  drawTop();
  drawStep();
  tellBeside();
  drawMap();
  drawLines();
  keepInView();
  drawNeuron();
}
