/* The grids of heads in a document: put in order by what is known of each head, and told in words. */

/** @type {NodeListOf<any>} */
const tables = document.querySelectorAll("table.heads");
for (const table of tables) {
  const rows = [...table.tBodies[0].rows], own = rows.map((row) => [...row.cells].slice(1)), across = own[0].length;
  const cells = own.flat().filter((cell) => cell.title), said = make("span", { role: "status" });
  const names = JSON.parse(table.dataset.measures), label = ({ dataset }) => dataset.label ?? "\uffff";
  const number = (cell, by, none) => parseFloat(cell.dataset.values?.split(",")[Math.max(0, names.indexOf(by))] || none);
  const rank = (by) => (a, b) => (by === "label" && label(a).localeCompare(label(b))) || number(b, by, -Infinity) - number(a, by, -Infinity);
  const order = ({ target: { value: by } }) => {
    const ranked = by === "layer" ? own.flat() : [...cells].sort(rank(by)), more = names.indexOf(by) > 0;
    rows.forEach((row, at) => row.replaceChildren(row.cells[0], ...ranked.slice(at * across, (at + 1) * across)));
    for (const cell of cells) cell.dataset.told = cell.dataset.name + (more ? ` ${share(number(cell, by))}` : "");
    table.classList.toggle("ordered", by !== "layer");
  };
  const known = ["layer", ...(cells.some(({ dataset }) => dataset.label) ? ["label"] : []), ...names].map((name) => make("option", {}, name));
  table.parentNode.before(make("p", { class: "order" }, make("label", {}, "Order ", make("select", { onchange: order }, ...known)), said));
  const tell = ({ target }) => { said.textContent = target.closest("td[title]")?.title ?? said.textContent; };
  for (const kind of ["pointerover", "focusin"]) table.addEventListener(kind, tell);
  table.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key], cell = event.target;
    const next = by && table.rows[cell.parentNode.rowIndex + by[0]]?.cells[cell.cellIndex + by[1]];
    if (next?.title) { event.preventDefault(); [cell.tabIndex, next.tabIndex] = [-1, 0]; next.focus(); }
  });
  cells.forEach((cell, at) => { cell.tabIndex = at ? -1 : 0; });
}
