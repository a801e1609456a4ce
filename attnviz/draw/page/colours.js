/* Colours: from the style sheet, so that light, dark and print have one source. */

let colour = {};
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** 256 colours, as little-endian RGBA words, through evenly spaced stops; the scale is √weight. */
function ramp(stops) {
  const anchors = stops.map(rgb), last = anchors.length - 1;
  return Uint32Array.from({ length: 256 }, (_, step) => {
    const place = (step / 255) * last, from = Math.min(last - 1, Math.floor(place)), t = place - from;
    const [r, g, b] = anchors[from].map((low, c) => Math.round(low + t * (anchors[from + 1][c] - low)));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

function readColours() {
  const style = getComputedStyle(document.documentElement), value = (name) => style.getPropertyValue(name).trim();
  const dark = document.documentElement.dataset.theme === "dark";
  const named = ["ground", "panel", "ink", "soft", "rule", "accent", "grey"];
  colour = Object.fromEntries(named.map((name) => [name, value("--" + name)]));
  colour.hues = value("--hues").split(" ");
  for (const [name, grounds] of Object.entries(data.ramps)) colour[name] = ramp(grounds[Number(dark)]);
  const ends = (hue) => (dark ? [colour.panel, hue, "#ffffff"] : ["#ffffff", hue, "#101418"]);
  colour.labels = data.labels.map((label) => label.colours?.[Number(dark)] ?? colour.grey);
  colour.thumbs = colour.labels.map((hue) => ramp(ends(hue)).map((_, at, words) => words[Math.floor(at * 0.72)]));
}

/** Return the colour of a region of the text, by the order in which regions begin. */
function regionColour(name) {
  const names = [...new Set([...shown.queries.regions, ...shown.keys.regions].map(([one]) => one))];
  return name ? colour.hues[names.indexOf(name) % colour.hues.length] : colour.rule;
}
const hueOf = (head) => colour.labels[shown.heads.label[head]];
/** Return black or white: one of them has a contrast of at least 4.5 on any colour. */
const inkOn = (word) => [0.2126, 0.7152, 0.0722].reduce((sum, part, at) => sum + part * (((word >> (8 * at)) & 255) / 255) ** 2.2, 0)
  < 0.18 ? "#ffffff" : "#000000";
const css = (word) => `rgb(${word & 255} ${(word >> 8) & 255} ${(word >> 16) & 255})`;

/** Return the place of a value among 256 colours: on the scale of roots, or between two signs; full: where it ends. */
const step = (value, limit = shown.limit, full = Number(state.full)) => {
  const part = limit ? value / limit / full / 2 + 0.5 : Math.sqrt(value / full);
  return Math.round(Math.max(0, Math.min(1, part)) * 255);
};
const scale = (limit = shown.limit) => (limit ? colour.signed : colour.map);
const tint = (value) => (value === value ? scale()[step(value)] : 0);

/** Return a picture of a map, at most so many cells a side: where cells fall together the strongest shows. */
function picture(values, n, m, words, most, limit = shown.limit) {
  const each = Math.max(1, Math.ceil(Math.max(n, m) / Math.max(1, most))); // a hidden frame has no size
  const width = Math.ceil(m / each), height = Math.ceil(n / each);
  const strongest = new Float32Array(width * height).fill(NaN);
  for (let i = 0; i < n; i++) {
    const row = Math.floor(i / each) * width;
    for (let j = 0; j < m; j++) {
      const value = values[i * m + j], at = row + (each === 1 ? j : (j / each) | 0);
      if (value === value && !(Math.abs(value) <= Math.abs(strongest[at]))) strongest[at] = value;
    }
  }
  const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);
  for (let k = 0; k < pixels.length; k++)
    if (strongest[k] === strongest[k]) pixels[k] = words[step(strongest[k], limit)];
  return image;
}

function paint(canvas, image) {
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
