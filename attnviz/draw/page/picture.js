/* The picture that a model saw: the row of a token lies over it, and a patch answers as a word does. */

const panes = [];

/** Return the token of an axis that stands at a place of a picture; -1 without one. */
const standing = ({ grid = [], row, column }, pane, y, x) => grid.findIndex((one, at) => one === pane && row[at] === y && column[at] === x);
/** Return the axis of the token that is looked from, and that of the tokens whose weights are shown. */
const ends = () => (state.direction === "to" ? [shown.queries, shown.keys] : [shown.keys, shown.queries]);

function makePictures() {
  if (makePictures.of === shown) return;
  makePictures.of = shown;
  $("on-picture").hidden = !shown.panes.length;
  panes.splice(0, panes.length, ...shown.panes.map(({ name, rows, columns, wide, box: [left, top, right, bottom], image }, at) => {
    const sides = { left, top, width: right - left, height: bottom - top };
    const canvas = make("canvas", { "aria-hidden": true, ...Object.fromEntries(Object.entries(sides).map(([side, part]) => ["--" + side, part * 100 + "%"])) });
    const picture = make("img", { alt: "", src: image, width: wide }), label = `Picture ${name || at + 1}, ${rows} × ${columns} patches: arrow keys move, Enter holds the patch`;
    const box = make("div", { class: "pane", tabindex: 0, role: "application", "aria-roledescription": "picture", "aria-label": label }, picture, canvas);
    const pane = { at, rows, columns, sides, canvas, picture, box };
    picture.onload = () => redraw("token");
    box.addEventListener("pointermove", (event) => answer(pane, event));
    box.addEventListener("click", (event) => answer(pane, event, true));
    box.addEventListener("pointerleave", () => { if (!state.locked) set({ hover: false }, "token"); });
    box.addEventListener("keydown", (event) => walk(pane, event));
    return pane;
  }));
  $("panes").replaceChildren(...panes.map(({ box }) => box));
  $("veil").oninput = () => redraw("token");
  $("picture-png").onclick = () => wholePicture().toBlob((blob) => download(blob, "png"));
  $("picture-svg").onclick = () => download(new Blob([pictureSvg()], { type: "image/svg+xml" }), "svg");
  for (const side of ["queries", "keys"]) shown[side].grid?.forEach((grid, at) => { words[side][at].hidden = panes.length > 0 && grid >= 0; });
}

/** Look from a patch; where it only is looked at, look at it. at: its place. */
function lookFrom(pane, y, x, held) {
  const from = state.direction === "to" ? "query" : "key", token = standing(ends()[0], pane.at, y, x);
  if (token >= 0) return look({ [from]: token }, held);
  const other = standing(ends()[1], pane.at, y, x);
  if (other >= 0) look(from === "query" ? { key: other } : { query: other, key: state.key }, held);
}

/** The patch under the pointer answers; a click holds it. */
function answer(pane, event, clicked = false) {
  const room = pane.canvas.getBoundingClientRect(), before = `${state.query},${state.key}`;
  const y = Math.floor(((event.clientY - room.top) / room.height) * pane.rows), x = Math.floor(((event.clientX - room.left) / room.width) * pane.columns);
  if (y < 0 || x < 0 || y >= pane.rows || x >= pane.columns) return;
  lookFrom(pane, y, x, clicked);
  if (clicked) lock(before === `${state.query},${state.key}`);
}

function walk(pane, event) {
  const by = ARROWS[event.key], [own] = ends(), token = active();
  if (event.key === "Enter" || event.key === " ") lock(true);
  else if (by && !event.altKey && !event.ctrlKey && !event.metaKey) {
    const here = own.grid?.[token] === pane.at ? [own.row[token], own.column[token]] : [pane.rows >> 1, pane.columns >> 1];
    lookFrom(pane, Math.max(0, Math.min(pane.rows - 1, here[0] + by[0])), Math.max(0, Math.min(pane.columns - 1, here[1] + by[1])), true);
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

function drawPictures() {
  if (!panes.length) return;
  if (drawPictures.query !== state.query) redraw("thumbs");
  drawPictures.query = state.query;
  const [own, side] = ends(), token = active(), seen = links().filter(([at]) => side.grid?.[at] >= 0);
  const total = seen.reduce((sum, [, value]) => sum + strength(value), 0), most = seen.length ? strength(seen[0][1]) || 1 : 1;
  let inside = 0;
  const enclosed = seen.findIndex(([, value]) => (inside += strength(value)) >= 0.6 * total); // the line is round these
  for (const pane of panes) {
    const { rows, columns, canvas } = pane, ratio = devicePixelRatio || 1, pen = canvas.getContext("2d"), within = new Set(), at = (y, x) => y * columns + x;
    const veil = new ImageData(columns, rows);
    canvas.width = Math.max(columns, canvas.clientWidth * ratio);
    canvas.height = Math.max(rows, canvas.clientHeight * ratio);
    seen.forEach(([key, value], rank) => {
      const place = at(side.row[key], side.column[key]);
      if (side.grid[key] !== pane.at) return;
      if (rank <= enclosed) within.add(place);
      veil.data.set(veiled(scale()[shown.limit ? step(value) : step(value, 0, most)], Math.sqrt(strength(value) / (shown.limit ? 1 : most))), 4 * place);
    });
    pen.scale(canvas.width / columns, canvas.height / rows);
    pen.globalAlpha = $("veil").value / 100;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(paint(document.createElement("canvas"), veil), 0, 0);
    pen.globalAlpha = 1;
    const edges = new Path2D(), edge = (y, x, b, a) => { edges.moveTo(x, y); edges.lineTo(a, b); };
    for (const place of within) {
      const y = Math.floor(place / columns), x = place % columns;
      if (!within.has(at(y - 1, x))) edge(y, x, y, x + 1);
      if (!within.has(at(y + 1, x))) edge(y + 1, x, y + 1, x + 1);
      if (!x || !within.has(place - 1)) edge(y, x, y + 1, x);
      if (x === columns - 1 || !within.has(place + 1)) edge(y, x + 1, y + 1, x + 1);
    }
    const line = (ink, wide, path = edges) => Object.assign(pen, { strokeStyle: ink, lineWidth: wide * ratio * columns / canvas.width }) && pen.stroke(path);
    line("#000000", 3.5);
    line("#ffffff", 1.5);
    if (own.grid?.[token] !== pane.at) continue;
    const mark = new Path2D();
    mark.rect(own.column[token], own.row[token], 1, 1);
    line("#ffffff", 4, mark);
    line("#d4680d", 2, mark);
  }
  $("patch").textContent = `${own.names[token]}: ${share(total)} on patches; 60% of that inside the line`;
}

/** Return red, green, blue and opacity of a colour that lies over a picture, see `veils` of draw.palette. part: how strong it is, from 0 to 1. */
function veiled(word, part) {
  const own = part ** 1.5, rest = (1 - own) * 0.45, ground = rgb(hex(scale()[shown.limit ? 128 : 0])).every((light) => light > 127) ? 255 : 0;
  const mixed = [0, 8, 16].map((by) => Math.round((own * ((word >> by) & 255) + rest * ground) / (own + rest)));
  return [...mixed, Math.round(255 * (own + rest))];
}

/** Return a small picture of what the query gives to the patches of the first picture in a head: largest is full. */
function patchImage(head, words) {
  const { rows, columns } = panes[0], { grid, row, column } = shown.keys, values = new Float32Array(rows * columns).fill(NaN);
  const given = shown.fillRow(head, state.query, new Float32Array(shown.m).fill(NaN));
  grid.forEach((one, key) => { if (one === 0) values[row[key] * columns + column[key]] = given[key] * shown.factor(head, state.mode, key); });
  const most = shown.limit ? 1 : values.reduce((largest, value) => (value > largest ? value : largest), 0) || 1;
  return picture(values.map((value) => value / most), rows, columns, words, Infinity);
}

/** Return the first picture with what lies over it, as it was given. */
function wholePicture() {
  const { picture, canvas, sides: { left, top, width, height } } = panes[0], whole = document.createElement("canvas");
  const times = Math.max(1, canvas.width / width / picture.naturalWidth), pen = whole.getContext("2d");
  [whole.width, whole.height] = [picture.naturalWidth * times, picture.naturalHeight * times];
  pen.drawImage(picture, 0, 0, whole.width, whole.height);
  pen.drawImage(canvas, left * whole.width, top * whole.height, width * whole.width, height * whole.height);
  return whole;
}

function pictureSvg() {
  const { picture: { naturalWidth: wide, naturalHeight: high, src }, canvas, sides: { left, top, width, height } } = panes[0];
  const place = `x="${left * wide}" y="${top * high}" width="${width * wide}" height="${height * high}"`, said = xml(`${mapName()} · ${$("patch").textContent}`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${wide} ${high}" role="img" aria-label="${said}"><title>${said}</title>` +
    `<image width="${wide}" height="${high}" href="${src}"/><image ${place} preserveAspectRatio="none" href="${canvas.toDataURL()}"/></svg>`;
}
