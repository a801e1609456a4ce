/* Files: the map as PNG, SVG and CSV. */

function download(blob, ending) {
  const parts = [data.model, captures.length > 1 && `text-${state.capture + 1}`, $("name").textContent, state.mode], name = parts.filter(Boolean).join("-").replace(/[^\w.-]+/g, "-");
  const link = make("a", { href: URL.createObjectURL(blob), download: `attnviz-${name}.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

/** A field of CSV; a text that a spreadsheet could take for a formula begins with an apostrophe. */
const field = (text) => `"${text.replace(/^[=+\-@\t\r]/, "'$&").replace(/"/g, '""')}"`;
const xml = (text) => visible(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

function csvOf() {
  const values = current(), digits = exact() ? 5 : 3, rows = ["query,query_token,key,key_token,weight" + (exact() ? "" : "_of_8_bits")];
  shown.queries.tokens.forEach((query, i) => {
    for (let j = 0; j < shown.seen(i); j++) {
      const value = weight(i, j, values);
      if (value === value) rows.push([i, field(query), j, field(shown.keys.tokens[j]), value.toPrecision(digits)].join());
    }
  });
  return rows.join("\n") + "\n";
}

/** The picture of svgOf as PNG: its letters are read from the last row, its sides are at most 4,000 pixels. */
async function pngOf() {
  const svg = svgOf(), [, wide, high] = /viewBox="0 0 (\S+) (\S+)"/.exec(svg).map(Number), times = Math.min(3, 4000 / Math.max(wide, high));
  const image = new Image(wide * times, high * times), canvas = document.createElement("canvas");
  image.src = "data:image/svg+xml," + encodeURIComponent(svg);
  await image.decode();
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, image.width, image.height);
  return new Promise((done) => { canvas.toBlob(done); });
}

const mapName = () =>
  [captures.length > 1 && shown.name, $("name").textContent, $("what").firstChild?.textContent, modes()[state.mode], data.model].filter(Boolean).join(" · ");

/** Return a colour of a map as #rrggbb. */
const hex = (word) => "#" + [0, 8, 16].map((by) => ((word >> by) & 255).toString(16).padStart(2, "0")).join("");

/** The whole map with its axes, its scale and, where cells are few, its numbers. */
function svgOf() {
  const { n, m } = shown, values = current(), size = Math.max(n, m), cell = size > 40 ? Math.max(2, Math.floor(1000 / size)) : size > 20 ? 18 : 34, every = Math.ceil(15 / cell), left = 130, top = 150, parts = [], { ink, soft, ground } = colour;
  const right = Math.max(left + m * cell + 90, 560), bottom = top + n * cell + 64;
  const text = (x, y, content, more = "") => parts.push(`<text x="${x}" y="${y}" ${more}>${xml(content)}</text>`);
  const square = (i, j) => `x="${left + j * cell}" y="${top + i * cell}" width="${cell}" height="${cell}"`;
  parts.push(`<rect width="100%" height="100%" fill="${ground}"/>`);
  text(8, 24, mapName(), 'font-weight="600" font-size="16"');
  text(left, 48, "key → the token that is attended to", `fill="${soft}"`);
  text(8, top - 8, "query ↓", `fill="${soft}"`);
  if (n * m <= 4096) {
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) {
      const value = weight(i, j, values), title = `<title>${share(value, 4)}</title>`, word = tint(value);
      if (value !== value) continue;
      parts.push(`<rect ${square(i, j)} fill="${hex(word)}">${title}</rect>`);
      if (cell > 30 && strength(value) >= 0.005) text(left + (j + 0.5) * cell, top + (i + 0.62) * cell, told(value), `text-anchor="middle" font-size="12" fill="${inkOn(word)}"`);
    }
  } else {
    const image = paint(document.createElement("canvas"), picture(values, n, m, scale(), Infinity)).toDataURL();
    const room = `x="${left}" y="${top}" width="${m * cell}" height="${n * cell}"`;
    parts.push(`<image ${room} style="image-rendering:pixelated" href="${image}"/>`);
  }
  const named = ({ tokens }, put) => tokens.forEach((token, at) => at % every || put(cutTo((every > 1 ? `${at} ` : "") + token, 15), at));
  named(shown.queries, (token, i) => text(left - 6, top + (i + 0.5) * cell + 5, token, 'text-anchor="end"'));
  named(shown.keys, (token, j) => parts.push(`<text transform="translate(${left + (j + 0.6) * cell} ${top - 6}) rotate(-45)">${xml(token)}</text>`));
  const end = Number(state.full) * (shown.limit || 1), ticks = shown.limit ? [-end, 0, end] : [0, 0.05, 0.25, 0.5, 1].map((part) => part * end);
  for (let x = 0; x < 240; x += 2) parts.push(`<rect x="${left + x}" y="${bottom - 44}" width="2.5" height="12" fill="${hex(scale()[Math.round((x / 238) * 255)])}"/>`);
  for (const tick of ticks) text(left + step(tick) / 255 * 240, bottom - 16, tick ? share(tick) : "0", 'text-anchor="middle" font-size="12"');
  text(left - 6, bottom - 33, shown.limit ? "change" : "weight", `text-anchor="end" fill="${soft}"`);
  const look = `font-family="sans-serif" font-size="14" fill="${ink}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${right} ${bottom}" ${look}>${parts.join("")}</svg>`;
}
const cutTo = (text, most) => (text.length > most ? [...text].slice(0, most - 1).join("") + "…" : text);
