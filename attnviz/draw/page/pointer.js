/* The pointer, printing, and the change of the text. */

function listen() {
  const map = $("map"), lines = $("lines"), text = $("words");
  map.addEventListener("pointermove", (event) => {
    const { query, key } = cellAt(event);
    if (query >= 0 && query === state.query && key === state.key && state.hover) return;
    if (query >= 0) look({ query, key, direction: "to" });
    else if (key >= 0) look({ key, direction: "from" });
  });
  map.addEventListener("click", (event) => {
    const { query, key } = cellAt(event), same = query === state.query && key === state.key;
    if (query < 0 && key < 0) return;
    look({ query: query < 0 ? state.query : query, key, direction: query < 0 ? "from" : "to" }, true);
    lock(same);
  });
  const wordOf = (event) => {
    const span = event.target.closest("[data-at]"), side = span?.parentNode.dataset.side;
    if (!span) return null;
    const direction = shown.crossed ? (side === "keys" ? "from" : "to") : state.direction, at = Number(span.dataset.at);
    return direction === "to" ? { query: at, direction } : { key: at, direction };
  };
  for (const [panel, moved, place] of [[lines, "pointermove", tokenAt], [text, "pointerover", wordOf]]) {
    panel.addEventListener(moved, (event) => { const found = place(event); if (found) look(found); });
    panel.addEventListener("click", (event) => {
      const found = place(event);
      if (!found || (panel === text && String(getSelection()))) return; // words that were selected stay so
      const same = (found.query ?? found.key) === active() && found.direction === state.direction;
      look(found, true);
      lock(same);
    });
  }
  const grid = $("grid"), headOf = (event) => Number(event.target.closest("[data-head]")?.dataset.head ?? -1);
  grid.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch" && headOf(event) >= 0) preview(headOf(event));
    $("app").classList.toggle("left", event.clientX > innerWidth / 2);
  });
  grid.addEventListener("pointerleave", () => preview());
  grid.addEventListener("click", (event) => {
    const head = headOf(event);
    if (head < 0) return;
    set.step = true;
    state.card = true;
    choose(head);
  });
  grid.addEventListener("dblclick", (event) => headOf(event) >= 0 && setView("one"));
  grid.addEventListener("wheel", (event) => {
    if (state.view !== "all" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1 : -1);
  }, { passive: false });
  for (const element of [map, lines, text]) element.addEventListener("pointerleave", () => { if (!state.locked) set({ hover: false }, "token"); });
  map.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomBy(event.deltaY < 0 ? 1 : -1, cellAt(event));
  }, { passive: false });
  map.addEventListener("dblclick", (event) => zoomBy(state.zoom ? 0 : 4, cellAt(event)));
  map.addEventListener("scroll", () => drawMap(), { passive: true });
  lines.addEventListener("scroll", () => drawLines(), { passive: true });
  $("sort").addEventListener("change", (event) => set({ sort: event.target.value }, "grid"));
  $("contrast").addEventListener("change", (event) => set({ full: event.target.value }, "thumbs", "head"));
  $("between").addEventListener("change", (event) => set({ between: event.target.value }, "head"));
  $("capture").addEventListener("change", (event) => switchTo(Number(event.target.value)));
  const clicks = {
    previous: () => stepHead(-1), next: () => stepHead(1), pin: () => togglePin(),
    theme: toggleTheme, help: () => $("keys").showModal(),
    "wide-map": () => setRoom("map"), "wide-lines": () => setRoom("lines"),
    "zoom-in": () => zoomBy(1), "zoom-out": () => zoomBy(-1), "zoom-fit": () => zoomBy(0),
    "save-csv": () => download(new Blob([csvOf()], { type: "text/csv" }), "csv"),
    "save-svg": () => download(new Blob([svgOf()], { type: "image/svg+xml" }), "svg"),
    "save-png": async () => download(await pngOf(), "png"),
  };
  for (const id in clicks) $(id).onclick = clicks[id];
  $("weights").addEventListener("toggle", () => $("weights").open && drawWeights());
  $("neurons").addEventListener("toggle", drawNeuron);
  addEventListener("keydown", onKey);
  addEventListener("hashchange", async () => { await readLink(location.hash); drawAll(); });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) redraw("grid");
    width = innerWidth;
    redraw("head");
  });
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
}

/** Paper is white: draw everything light, at once. */
function print(begins) {
  const root = document.documentElement;
  if (begins) print.theme = root.dataset.theme;
  root.dataset.theme = begins ? "light" : print.theme;
  root.classList.toggle("paper", (paper = begins));
  drawPalette();
}

function toggleTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  redraw("palette");
}

/** Show another text; the head stays, and so does the token where the texts have the same ones. */
async function switchTo(capture, changes = {}) {
  const before = shown;
  shown = await captures[capture].open();
  const again = (heads) => heads.map((head) => shown.names.indexOf(before.names[head])).filter((at) => at >= 0);
  const same = ["queries", "keys"].every((side) => before[side].tokens.join() === shown[side].tokens.join());
  const place = same ? {} : { query: shown.view.query, key: -1, locked: false, hover: false };
  const [head = shown.view.head] = again([state.head]);
  set({ capture, head, pins: again(state.pins), ...place, ...changes });
  if (!modes()[state.mode]) state.mode = "raw";
  if (!orders()[state.sort]) state.sort = "layer";
  if (!betweens()[state.between]) state.between = "";
  state.off.clear();
  drawAll();
}
