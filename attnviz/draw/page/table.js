/* The weights as a table, for readers who do not see the map. */

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
