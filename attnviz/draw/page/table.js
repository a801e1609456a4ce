/* The weights as a table, for readers who do not see the map; and what regions give to regions. */

/** Show how much of the attention of a region's queries goes to each region, on average. */
function drawRegions() {
  const values = current(), panel = $("regions"), { n, m } = shown;
  const of = (side, count) => shown[side].regions.map(([name, start], at, all) => ({ name, start, end: all[at + 1]?.[1] ?? count }));
  const merged = (spans) => [...new Set(spans.map(({ name }) => name))].filter(Boolean).map((name) => [name, spans.filter((span) => span.name === name)]);
  const [rows, columns] = [merged(of("queries", n)), merged(of("keys", m))], places = (spans) => spans.flatMap(({ start, end }) => Array.from({ length: end - start }, (_, at) => start + at));
  panel.hidden = columns.length < 2 || Boolean(shown.limit) || Boolean(state.between);
  if (panel.hidden) return;
  const cell = (row, column) => {
    const queries = places(row), sum = queries.reduce((all, i) => all + places(column).reduce((part, j) => part + (values[i * m + j] || 0), 0), 0);
    const value = sum / queries.length, word = tint(value);
    return make("td", { "--fill": css(word), "--on": inkOn(word) }, share(value));
  };
  panel.replaceChildren(make("table", {}, make("caption", {}, "Share of a region's attention (rows) that a region gets (columns)"),
    make("thead", {}, make("tr", {}, make("td"), ...columns.map(([name]) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map(([name, row]) => make("tr", {}, make("th", { scope: "row" }, name), ...columns.map(([, column]) => cell(row, column)))))));
}

function drawWeights() {
  const { n, m } = shown, values = current(), whole = n * m <= 2500, { tokens } = shown.keys;
  const row = (i) => whole
    ? tokens.map((_, j) => make("td", {}, told(weight(i, j, values), 3)))
    : [...tokens.keys()].filter((j) => strength(weight(i, j, values)) >= 0.005)
      .sort((a, b) => strength(weight(i, b, values)) - strength(weight(i, a, values))).slice(0, 6)
      .map((j) => make("td", {}, `${ordered(tokens[j])} (${j}) ${told(weight(i, j, values))}`));
  const titles = whole ? shown.keys.names : ["1st", "2nd", "3rd", "4th", "5th", "6th"];
  const order = whole ? ", columns keys" : ": the six strongest keys of each";
  const head = ["query", ...titles].map((title) => make("th", { scope: "col" }, title));
  const body = shown.queries.tokens.map((token, i) =>
    make("tr", {}, make("th", { scope: "row" }, `${token} (${i})`), ...row(i)));
  $("weights").lastElementChild.replaceChildren(make("table", {},
    make("caption", {}, `${$("name").textContent}, ${modes()[state.mode]}. Rows are queries${order}.`),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}
