/* Files: the map as PNG, SVG and CSV. */

function download(blob, ending) {
  const name = [data.model, $("name").textContent, state.mode].join("-").replace(/[^\w.-]+/g, "-");
  const link = make("a", { href: URL.createObjectURL(blob), download: `attnviz-${name}.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

/** A field of CSV; a text that a spreadsheet could take for a formula begins with an apostrophe. */
const field = (text) => `"${text.replace(/^[=+\-@\t\r]/, "'$&").replace(/"/g, '""')}"`;
const xml = (text) => visible(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

function csvOf() {
  const values = current(), rows = ["query,query_token,key,key_token,weight"];
  for (let i = 0; i < shown.n; i++) for (let j = 0; j < shown.seen(i); j++) {
    const value = weight(i, j, values);
    if (value === value) rows.push([i, field(shown.queries.tokens[i]), j, field(shown.keys.tokens[j]), value.toPrecision(exact() ? 5 : 3)].join());
  }
  return rows.join("\n") + "\n";
}

/** The whole map as it is on the screen, without the cross; the cells big enough to read. */
function mapCanvas() {
  const places = mapPlaces(4000, 4000, 0), title = 30, canvas = document.createElement("canvas");
  const scale = Math.min(2, 8000 / Math.max(places.width, places.height));
  canvas.width = Math.ceil(places.width * scale);
  canvas.height = Math.ceil((places.height + title) * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = colour.ground;
  pen.fillRect(0, 0, places.width, places.height + title);
  pen.translate(0, title);
  paintMap(pen, places, 0, 0, places.width, places.height, false);
  pen.fillStyle = colour.ink;
  pen.font = `600 14px ${FONT}`;
  pen.textAlign = "left";
  pen.fillText(mapName(), 4, -14);
  mapView.image = null;
  return canvas;
}
const mapName = () => [$("name").textContent, $("what").firstChild?.textContent, modes()[state.mode], data.model].filter(Boolean).join(" · ");

function svgOf() {
  const { n, m } = shown, values = current(), cell = 18, left = 120, top = 110, text = [];
  const image = paint(document.createElement("canvas"), picture(values, n, m, colour.map, Infinity)).toDataURL();
  shown.queries.tokens.forEach((token, i) => text.push(`<text x="${left - 6}" y="${top + (i + 0.7) * cell}" text-anchor="end">${xml(token)}</text>`));
  shown.keys.tokens.forEach((token, j) => text.push(`<text transform="translate(${left + (j + 0.6) * cell} ${top - 6}) rotate(-45)">${xml(token)}</text>`));
  const cells = [];
  if (n * m <= 4096) {
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) {
      const value = weight(i, j, values);
      if (value === value) cells.push(`<rect x="${left + j * cell}" y="${top + i * cell}" width="${cell}" height="${cell}" fill="#${[0, 8, 16].map((by) => ((tint(value) >> by) & 255).toString(16).padStart(2, "0")).join("")}"><title>${share(value, 4)}</title></rect>`);
    }
  } else cells.push(`<image x="${left}" y="${top}" width="${m * cell}" height="${n * cell}" style="image-rendering:pixelated" href="${image}"/>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -24 ${left + m * cell + 90} ${top + n * cell + 34}" font-family="sans-serif" font-size="12" fill="${colour.ink}"><rect y="-24" width="100%" height="100%" fill="${colour.ground}"/><text x="4" y="-6" font-weight="600">${xml(mapName())}</text>${cells.join("")}${text.join("")}</svg>`;
}
