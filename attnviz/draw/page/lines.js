/* Lines between two columns of tokens, for the chosen head and the pinned ones. */

/** Dashes tell pinned heads apart that have one label. */
const lineView = { row: 21 }, DASHES = [[], [7, 3], [2, 3], [8, 3, 2, 3], [4, 4], [1, 5]];

function drawLines() {
  const scroller = $("lines"), { n, m } = shown, { cell, top: over } = mapView.places;
  const beside = scroller.getBoundingClientRect().top === $("map").getBoundingClientRect().top && cell >= 17 && state.zoom === 0;
  const row = (lineView.row = beside ? cell : Math.max(n, m) > 60 ? 17 : 22), start = (lineView.start = beside ? over : 4);
  const places = { height: Math.max(n, m) * row + start + 4 };
  scroller.style.height = Math.min(parseFloat(getComputedStyle(scroller).maxHeight) || 600, places.height) + "px";
  const { pen, wide, high, top } = viewport(scroller, scroller.clientWidth - 2, places.height);
  const centre = (at) => start + (at + 0.5) * row - top;
  pen.clearRect(0, 0, wide, high);
  const maps = [heads(), ...pinned().map((head) => [head])].map((chosen) => filtered(shown.map(chosen, state.mode)));
  const hues = maps.map((_, at) => seriesColour(at)), dim = state.hover || state.locked, room = maps.length * 34 + 80;
  const slots = maps.length < 5 && room < wide * 0.55 ? maps.length : 0;
  const slim = wide < 320; // numbers need their room
  const from = wide * (slots > 1 ? 0.26 : slim ? 0.3 : 0.34), to = Math.min(wide * (slim ? 0.56 : 0.66), slots > 1 ? wide - room : wide);
  const first = Math.max(0, Math.floor(top / row) - 1), last = Math.min(n, Math.ceil((top + high) / row) + 1);
  const isActive = (i, j) => (state.direction === "to" ? i === state.query : j === Math.max(0, state.key));
  const line = (i, j, value, at, strong) => {
    const strongly = strength(value);
    pen.globalAlpha = strong ? 0.15 + 0.85 * strongly : strongly * (dim ? 0.1 : 0.45);
    pen.lineWidth = strong ? 1 + 3.5 * strongly : 1.25;
    pen.strokeStyle = shown.limit ? css(tint(Math.sign(value) * shown.limit)) : hues[at];
    const shift = (at - (maps.length - 1) / 2) * Math.min(2.5, (row * 0.7) / maps.length);
    pen.setLineDash(state.scope === "over" ? [] : DASHES[at % DASHES.length]);
    pen.beginPath();
    pen.moveTo(from, centre(i) + shift);
    const bend = (to - from) * 0.4, [start, end] = [centre(i) + shift, centre(j) + shift];
    pen.bezierCurveTo(from + bend, start, to - bend, end, to, end);
    pen.stroke();
  };
  const least = n > 60 ? 0.08 : 0.02;
  if (state.scope !== "over") maps.forEach((values, at) => {
    for (let i = first; i < last; i++)
      for (let j = 0; j < m; j++) if (strength(values[i * m + j]) >= least && !isActive(i, j)) line(i, j, values[i * m + j], at, false);
  });
  const drawn = maps.map((values) => links(values));
  drawn.forEach((found, at) => {
    for (const [other, value] of found) {
      if (strength(value) < (maps.length > 6 ? 0.04 : 0.01)) break; // the strongest stand first
      if (state.direction === "to") line(state.query, other, value, at, true);
      else line(other, Math.max(0, state.key), value, at, true);
    }
  });
  pen.globalAlpha = 1;
  pen.setLineDash([]);
  pen.textBaseline = "middle";
  const reachedBy = new Map(), farSide = state.direction === "to" ? "keys" : "queries";
  drawn.forEach((found, at) => found.forEach(([other, value]) => {
    if (strength(value) >= (maps.length > 6 ? 0.04 : 0.02)) reachedBy.set(other, [...(reachedBy.get(other) ?? []), [at, value]]);
  }));
  const wideOf = Math.min(6, 72 / maps.length);
  const column = (side, tokens, x, align, width) => {
    for (let i = Math.max(0, Math.floor(top / row) - 1); i < tokens.length && centre(i) < high + row; i++) {
      const chosen = (side === "queries" ? state.query : state.key) === i && ((side === farSide ? dim : true));
      const near = side !== farSide && i === active(), reached = side === farSide ? reachedBy.get(i) : null;
      if (near) {
        pen.fillStyle = colour.panel;
        pen.fillRect(align === "right" ? 0 : to, centre(i) - row / 2, align === "right" ? from : wide - to, row);
      }
      if (reached) reached.forEach(([at, value]) => {
        pen.globalAlpha = Math.sqrt(strength(value));
        pen.fillStyle = shown.limit ? css(tint(Math.sign(value) * shown.limit)) : hues[at];
        const x0 = align === "right" ? from - wideOf - at * wideOf : to + 1 + at * wideOf;
        pen.fillRect(x0, centre(i) - row / 2 + 2, wideOf - 1, row - 4);
        pen.globalAlpha = 1;
      });
      const shift = maps.length * wideOf + 6;
      pen.fillStyle = near || reached || !dim ? colour.ink : colour.soft;
      pen.font = `${near || chosen ? "600 " : ""}13px ${FONT}`;
      pen.textAlign = align;
      const numbers = reached && slots ? reached : [];
      const edge = align === "right" ? x - shift : x + shift;
      const label = cut(pen, tokens[i], width - shift - 28 * (numbers.length || before.length ? slots : 0) - 4 - (before.length && side === "keys" ? 36 : 0));
      pen.fillText(label, edge, centre(i));
      pen.font = `12px ${FONT}`;
      pen.textAlign = "right";
      if (side === "keys" && before.length > i) {
        pen.fillStyle = colour.soft;
        pen.fillText(signed(before[i], 1), wide - 34, centre(i));
      }
      numbers.forEach(([at, value]) => {
        pen.fillStyle = maps.length > 1 ? hues[at] : colour.soft;
        pen.fillText(told(value), (align === "right" ? slots * 28 - 4 : wide - 2) - (slots - 1 - at) * 28, centre(i));
      });
    }
  };
  const before = shown.vectors && slots === 1 && wide - to > 150 && single() && state.direction === "to" ? products(state.head, state.query) : [];
  column("queries", shown.queries.tokens, from, "right", from);
  column("keys", shown.keys.tokens, to, "left", wide - to);
  $("lines-words").textContent = "queries → keys" + (before.length ? ": q × k, weight" : "") + (n > 60 ? "; faint: from .08" : "") + (paper && high < places.height ? "; a part" : "");
}

/** The token under a pointer: a query on the left, a key on the right. */
function tokenAt(event) {
  const box = $("lines").getBoundingClientRect(), side = event.clientX - box.left < box.width / 2 ? "to" : "from";
  const at = Math.floor((event.clientY - box.top + $("lines").scrollTop - lineView.start) / lineView.row);
  if (at < 0 || at >= (side === "to" ? shown.n : shown.m)) return null;
  return { [side === "to" ? "query" : "key"]: at, direction: side };
}
