/* Query × key by dimension: what makes one weight. */

/** Return query × key before the softmax, for all keys of a query of a head. */
function products(head, query) {
  const { dimensions: d, scale, factor } = shown.query_key, unit = (scale[head][0] * scale[head][1] * factor) / 32767 ** 2;
  const start = (head * shown.n + query) * d, first = (shown.count * shown.n + head * shown.m) * d;
  return Array.from({ length: shown.seen(query) }, (_, key) => {
    let sum = 0;
    for (let at = 0; at < d; at++) sum += shown.vectors[start + at] * shown.vectors[first + key * d + at];
    return sum * unit;
  });
}

function drawNeuron() {
  const panel = $("neurons");
  panel.hidden = !(shown.vectors || shown.notes.length) || !single();
  $("neuron-notes").textContent = shown.notes.join(" ");
  $("neuron").hidden = $("neuron-words").hidden = !shown.vectors;
  if (panel.hidden || !panel.open || !shown.vectors) return;
  const { dimensions: d, scale, factor } = shown.query_key, { query, head, n, m } = { ...state, n: shown.n, m: shown.m };
  const key = state.key >= 0 ? state.key : links().find(([at]) => !shown.sinks.has(at))?.[0] ?? 0;
  const vector = (start, unit) => Array.from({ length: d }, (_, at) => (shown.vectors[start + at] / 32767) * unit);
  const q = vector((head * n + query) * d, scale[head][0]);
  const k = vector((shown.count * n + head * m + key) * d, scale[head][1]);
  const product = q.map((value, at) => value * k[at]), sum = product.reduce((a, b) => a + b, 0);
  const order = [...product.keys()].sort((a, b) => Math.abs(product[b]) - Math.abs(product[a])).slice(0, 4);
  const raw = shown.map([head], "raw")[query * m + key];
  const ends = `${shown.queries.names[query]} · ${shown.keys.names[key]}`, times = factor.toPrecision(3);
  const after = raw === raw ? `, ${read(raw, query, key)} after it` : "; the mask hides this key";
  const most = order.map((at) => `dimension ${at} (${signed(product[at])})`).join(", ");
  $("neuron-words").textContent = `${ends} = ${signed(sum)}, × ${times} = ${signed(sum * factor)}`
    + ` before the softmax${after}. Most comes from ${most}.`;
  const canvas = $("neuron"), ratio = devicePixelRatio || 1, wide = Math.min(900, panel.clientWidth), high = 186;
  canvas.width = wide * ratio;
  canvas.height = high * ratio;
  canvas.style.width = wide + "px";
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const left = 110, step = (wide - left) / d;
  const rows = { ["query " + shown.queries.tokens[query]]: q, ["key " + shown.keys.tokens[key]]: k, product };
  Object.entries(rows).forEach(([name, values], row) => {
    const middle = 30 + row * 62, most = Math.max(...values.map(Math.abs)) || 1;
    pen.fillStyle = colour.ink;
    pen.font = `12px ${FONT}`;
    pen.textBaseline = "middle";
    pen.fillText(cut(pen, name, left - 10), 0, middle);
    pen.fillStyle = colour.rule;
    pen.fillRect(left, middle, wide - left, 1);
    values.forEach((value, at) => {
      pen.fillStyle = value < 0 ? colour.hues[0] : colour.hues[1];
      const size = (Math.abs(value) / most) * 27;
      pen.fillRect(left + at * step + 0.5, value < 0 ? middle : middle - size, Math.max(1, step - 1.5), size);
    });
  });
}
