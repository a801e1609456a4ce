/* The same head in every text or model of the page, next to each other, and what each gives one cell. */

const beside = { captures: [] };

/** Return the map of the chosen head in another capture, in the same way of weighting if it has that. */
function besideMap(capture) {
  const head = capture.names.indexOf(shown.names[state.head]);
  const mode = state.mode === "value" && !capture.moved ? "raw" : capture.limit ? "raw" : state.mode;
  return capture.map([head], mode);
}

async function drawBeside() {
  const panel = $("beside"), name = shown.names[state.head], turn = (drawBeside.turn = {});
  const all = captures.filter((capture) => capture.names.includes(name));
  panel.hidden = all.length < 2 || !single();
  beside.captures = panel.hidden ? [] : all;
  if (panel.hidden) return;
  await Promise.all(all.map((capture) => capture.open()));
  if (drawBeside.turn !== turn) return;
  refill(panel, ...all.map((capture) => {
    const image = picture(besideMap(capture), capture.n, capture.m, scale(capture.limit), 110, capture.limit);
    const canvas = paint(make("canvas", { "aria-hidden": true }), image);
    const said = visible(capture.name), at = captures.indexOf(capture);
    const look = { "aria-pressed": capture === shown, "aria-label": `${name} in ${said}`, title: said };
    return make("button", { ...look, onclick: () => switchTo(at) }, canvas, make("span", { dir: "auto" }, said), " ", make("b"));
  }));
  tellBeside();
}

/** Write the looked-at weight below each map, where the texts have the same tokens. */
function tellBeside() {
  const { query, key } = state, cells = $("beside").querySelectorAll("b");
  beside.captures.forEach((capture, at) => {
    const same = capture.n === shown.n && capture.m === shown.m;
    const value = same && key >= 0 && capture.high ? besideMap(capture)[query * capture.m + key] : NaN;
    if (cells[at]) cells[at].textContent = key < 0 ? "\u00a0" : Number.isNaN(value) ? "–" : share(value, 2, Boolean(capture.limit));
  });
}
