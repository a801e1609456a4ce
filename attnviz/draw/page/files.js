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

const mapName = () =>
  [captures.length > 1 && shown.name, $("name").textContent, $("what").firstChild?.textContent, modes()[state.mode], data.model].filter(Boolean).join(" · ");

/** Return a colour of a map as #rrggbb. */
const hex = (word) => "#" + [0, 8, 16].map((by) => ((word >> by) & 255).toString(16).padStart(2, "0")).join("");

function svgOf() {
  const { n, m } = shown, values = current(), cell = 18, left = 120, top = 110, parts = [];
  const right = left + m * cell + 90, bottom = top + n * cell + 34;
  const square = (i, j) => `x="${left + j * cell}" y="${top + i * cell}" width="${cell}" height="${cell}"`;
  parts.push(`<rect y="-24" width="100%" height="100%" fill="${colour.ground}"/>`);
  parts.push(`<text x="4" y="-6" font-weight="600">${xml(mapName())}</text>`);
  if (n * m <= 4096) {
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) {
      const value = weight(i, j, values), title = `<title>${share(value, 4)}</title>`;
      if (value === value) parts.push(`<rect ${square(i, j)} fill="${hex(tint(value))}">${title}</rect>`);
    }
  } else {
    const image = paint(document.createElement("canvas"), picture(values, n, m, scale(), Infinity)).toDataURL();
    const room = `x="${left}" y="${top}" width="${m * cell}" height="${n * cell}"`;
    parts.push(`<image ${room} style="image-rendering:pixelated" href="${image}"/>`);
  }
  shown.queries.tokens.forEach((token, i) => {
    parts.push(`<text x="${left - 6}" y="${top + (i + 0.7) * cell}" text-anchor="end">${xml(token)}</text>`);
  });
  shown.keys.tokens.forEach((token, j) => {
    const turned = `translate(${left + (j + 0.6) * cell} ${top - 6}) rotate(-45)`;
    parts.push(`<text transform="${turned}">${xml(token)}</text>`);
  });
  const look = `font-family="sans-serif" font-size="12" fill="${colour.ink}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -24 ${right} ${bottom}" ${look}>${parts.join("")}</svg>`;
}
