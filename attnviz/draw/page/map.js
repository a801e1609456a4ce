/* The map: rows are queries, columns keys; a crosshair, steps of zoom, names on both axes. */

const mapView = { image: null, stale: true };

/** Where everything is: the cell's side, the most steps of zoom, and the room for tokens at the left and on top. */
function mapPlaces(wide, high, zoom) {
  const pen = mapView.pen ??= document.createElement("canvas").getContext("2d");
  pen.font = `600 12px ${FONT}`; // as a marked name is
  const longest = (tokens) => Math.min(120, Math.max(24, ...tokens.slice(0, 400).map((token) => pen.measureText(token).width)) + (tokens.length > 24 ? 24 : 0));
  const left = Math.max(60, longest(shown.queries.tokens) + 10), over = Math.max(42, longest(shown.keys.tokens));
  const fitted = (top) => Math.min(state.room ? 64 : 36, (wide - left - 2) / shown.m, Math.max(120, high - top - 12) / shown.n);
  const fit = fitted(over * 0.71) >= 15 ? fitted(over * 0.71) : fitted(over);
  const largest = Math.max(40, fit), most = Math.ceil(Math.log(largest / fit) / Math.log(1.5)), cell = Math.min(largest, fit * 1.5 ** zoom), slanted = cell >= 15;
  const top = (slanted ? over * 0.71 : over) + 10, right = slanted ? Math.max(0, over * 0.71 - cell * 0.4) : 0;
  const narrowed = zoom ? cell : Math.min(cell, (wide - left - right - 2) / shown.m);
  const width = left + shown.m * narrowed + right + 2, height = top + shown.n * narrowed + 2;
  return { cell: narrowed, most, left, top, right, slanted, width, height };
}

function mapImage(cell, ratio) {
  const most = cell * ratio >= 1 ? Infinity : Math.floor(Math.max(shown.n, shown.m) * cell * ratio);
  const name = `${most}`;
  if (mapView.image?.name !== name) {
    const canvas = paint(document.createElement("canvas"), picture(current(), shown.n, shown.m, scale(), most));
    mapView.image = { name, canvas };
  }
  return mapView.image.canvas;
}

/** Draw the part of the map that lies at (x, y) with a size. */
function paintMap(pen, places, x, y, wide, high) {
  const { cell, left, top, slanted } = places, { n, m } = shown, { query, key } = state;
  const image = mapImage(cell, devicePixelRatio || 1);
  pen.fillStyle = colour.ground;
  pen.fillRect(0, 0, wide, high);
  pen.save();
  pen.beginPath();
  pen.rect(left - 3, top - 3, wide - left + 3, high - top + 3);
  pen.clip();
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = colour.panel;
  pen.fillRect(left - x, top - y, m * cell, n * cell);
  if (shown.causal) {
    pen.fillStyle = colour.ground;
    pen.beginPath();
    for (let i = 0; i < n; i++) pen.rect(left - x + (i + 1) * cell, top - y + i * cell, (m - i - 1) * cell, cell + 0.5);
    pen.fill();
  }
  pen.drawImage(image, left - x, top - y, m * cell, n * cell);
  if (cell >= 7) {
    pen.strokeStyle = colour.rule;
    pen.lineWidth = 0.5;
    pen.beginPath();
    const rule = (from, to, at, row) => {
      const ends = [from, to].map((end) => [left - x + (row ? end : at) * cell, top - y + (row ? at : end) * cell]);
      pen.moveTo(...ends[0]);
      pen.lineTo(...ends[1]);
    };
    for (let i = 0; i <= n; i++) rule(0, shown.causal ? Math.min(m, i + 1) : m, i, true);
    for (let j = 0; j <= m; j++) rule(shown.causal ? Math.max(0, j - 1) : 0, n, j, false);
    pen.stroke();
  }
  for (const [side, count, along] of [["queries", n, m], ["keys", m, n]]) {
    shown[side].regions.forEach(([name, start], at, all) => {
      const [from, size] = [start * cell, ((all[at + 1]?.[1] ?? count) - start) * cell], row = side === "queries";
      pen.fillStyle = regionColour(name);
      if (row) pen.fillRect(left - x - 3, top - y + from, 3, size - 1);
      else pen.fillRect(left - x + from, top - y - 3, size - 1, 3);
      pen.globalAlpha = 0.35;
      if (at && row) pen.fillRect(left - x, top - y + from, along * cell, 1);
      else if (at) pen.fillRect(left - x + from, top - y, 1, along * cell);
      pen.globalAlpha = 1;
    });
  }
  pen.strokeStyle = colour.ink;
  pen.lineWidth = 1.5;
  const row = top - y + query * cell, column = left - x + key * cell;
  const across = (cell < 8 ? m : shown.seen(query)) * cell, over = (shown.causal ? key : 0) * cell;
  if (state.direction === "to" || key >= 0) pen.strokeRect(left - x + 0.75, row, Math.max(1, across - 1.5), cell);
  if (key >= 0) pen.strokeRect(column, top - y + 0.75 + over, cell, Math.max(1, n * cell - over - 1.5));
  if (key >= 0 && state.locked) { pen.lineWidth = 3; pen.strokeRect(column, row, cell, cell); }
  pen.textBaseline = "middle";
  pen.textAlign = "center";
  if (cell >= 30) {
    const values = current();
    pen.font = `11px ${FONT}`;
    for (let i = Math.max(0, Math.floor(y / cell)); i < n && top - y + i * cell < high; i++)
      for (let j = Math.max(0, Math.floor(x / cell)); j < m && left - x + j * cell < wide; j++) {
        const value = weight(i, j, values);
        if (strength(value) < 0.005 || value !== value) continue;
        pen.fillStyle = inkOn(tint(value));
        pen.fillText(told(value), left - x + (j + 0.5) * cell, top - y + (i + 0.5) * cell);
      }
  }
  const place = found();
  if (place) tag(pen, weight(place.query, place.key), left - x + place.key * cell, top - y + place.query * cell, cell, wide);
  pen.restore();
  const space = Math.max(1, Math.ceil((slanted ? 13 : 14) / cell));
  const ink = (on) => { pen.fillStyle = on ? colour.ink : colour.soft; pen.font = `${on ? "600 " : ""}12px ${FONT}`; };
  const shows = (at, chosen) => at === chosen || (at % space === 0 && (chosen < 0 || Math.abs(at - chosen) * cell >= 12));
  const numbered = (at) => (space > 1 ? `${at} ` : ""); // names that are no neighbours
  pen.textAlign = "right";
  ink(false);
  pen.font = `italic 11px ${FONT}`;
  pen.fillText("key →", left - 13, top - 29);
  pen.fillText("query ↓", left - 13, top - 16);
  for (let i = Math.max(0, Math.floor(y / cell)); i < n && top - y + i * cell < high; i++) {
    const at = top - y + (i + 0.5) * cell;
    if (at < top || !shows(i, query)) continue;
    ink(i === query);
    pen.fillText(cut(pen, numbered(i) + shown.queries.tokens[i], left - 8), left - 6, at);
  }
  pen.textAlign = "left";
  for (let j = Math.max(0, Math.floor(x / cell)); j < m && left - x + j * cell < wide; j++) {
    const at = left - x + (j + 0.5) * cell;
    if (at < left || !shows(j, key)) continue;
    ink(j === key);
    pen.save();
    pen.translate(at + (slanted ? 1 : 0), top - 5);
    pen.rotate(slanted ? -Math.PI / 4 : -Math.PI / 2);
    pen.fillText(cut(pen, numbered(j) + shown.keys.tokens[j], 116), 0, 0);
    pen.restore();
  }
}

/** Mark a cell with a frame and its number. */
function tag(pen, value, x, y, side, wide) {
  const size = Math.max(side, 5);
  pen.lineWidth = 5;
  pen.strokeStyle = colour.ground;
  pen.strokeRect(x + (side - size) / 2, y + (side - size) / 2, size, size);
  pen.lineWidth = 2.5;
  pen.strokeStyle = colour.ink;
  pen.strokeRect(x + (side - size) / 2, y + (side - size) / 2, size, size);
  if (side >= 30) return; // its number stands in it
  pen.font = `600 12px ${FONT}`;
  pen.fillStyle = colour.ink;
  const at = x + side + 38 > wide ? x - 36 : x + side + 4;
  pen.fillRect(at, y + side / 2 - 9, 32, 18);
  pen.fillStyle = colour.ground;
  pen.fillText(told(value), at + 16, y + side / 2 + 0.5);
}

/** Find the places of the map anew. */
function layMap() {
  const scroller = $("map");
  mapView.stale = false;
  scroller.style.height = "";
  const style = getComputedStyle(scroller), room = parseFloat(style.maxHeight) || 600;
  const places = (mapView.places = mapPlaces(scroller.clientWidth, room, state.view === "all" ? 0 : state.zoom));
  state.zoom = Math.min(state.zoom, places.most);
  const bar = places.width > scroller.clientWidth + 1 ? 16 : 0;
  scroller.style.height = Math.min(room, places.height + bar) + "px";
  options($("contrast").lastElementChild, FULL, state.full);
  $("scale-words").textContent = (shown.limit ? `of ±${share(shown.limit)}` : "√ scale")
    + (exact() ? "" : "; ≈: each number says its error");
  for (const id of ["zoom-out", "zoom-fit"]) $(id).ariaDisabled = String(state.zoom === 0);
  $("zoom-in").ariaDisabled = String(places.cell >= 40);
}

function drawMap() {
  if (mapView.stale) layMap();
  const { places } = mapView, { pen, wide, high, left, top } = viewport($("map"), places.width, places.height);
  paintMap(pen, places, left, top, wide, high);
}

/** The (query, key) under a pointer: -1 where there is none. */
function cellAt(event) {
  const box = $("map").getBoundingClientRect(), { cell, left, top } = mapView.places;
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const key = x < left ? -1 : Math.floor((x - left + $("map").scrollLeft) / cell);
  const query = y < top ? -1 : Math.floor((y - top + $("map").scrollTop) / cell);
  return { query: query < shown.n ? query : -1, key: key < shown.m ? key : -1 };
}

/** Zoom by steps, keeping the marked cell, or the one under the pointer, in view. */
function zoomBy(steps, { query, key } = { query: state.query, key: state.key }) {
  const at = nearest(query < 0 ? state.query : query, key < 0 ? state.key : key);
  state.zoom = steps ? Math.max(0, state.zoom + steps) : 0;
  mapView.stale = true;
  drawMap();
  const { cell, left, top } = mapView.places, scroller = $("map");
  const room = [scroller.clientWidth - left, scroller.clientHeight - top];
  scroller.scrollTo((at.key + 0.5) * cell - room[0] / 2, (at.query + 0.5) * cell - room[1] / 2);
  set({}, "token");
}

/** Scroll the map and the lines to what is looked at, but for what the pointer is on. */
function keepInView() {
  const near = (scroller, name, size, at, cell, before) => {
    const room = scroller[size] - before, start = "scroll" + name;
    if (at < scroller[start] || at + cell > scroller[start] + room) scroller[start] = at + cell / 2 - room / 2;
  };
  const map = $("map"), lines = $("lines"), { cell, left, top } = mapView.places;
  if (!map.matches(":hover")) {
    const { query, key } = nearest(state.query, state.key < 0 ? links()[0]?.[0] ?? 0 : state.key);
    near(map, "Top", "clientHeight", query * cell, cell, top);
    near(map, "Left", "clientWidth", key * cell, cell, left);
  }
  if (!lines.matches(":hover")) near(lines, "Top", "clientHeight", active() * lineView.row + lineView.start, lineView.row, 0);
}
