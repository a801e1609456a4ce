/* The start: what is drawn at first, and what is said where it cannot be drawn. */

function drawPalette() {
  readColours();
  const pen = $("scale").getContext("2d"), colours = scale();
  for (let x = 0; x < 120; x++) {
    pen.fillStyle = css(colours[Math.round((x / 119) * 255)]);
    pen.fillRect(x, 0, 1, 10);
  }
  drawLegend();
  drawGrid();
  drawHead();
}

/** What can be redrawn, in the order in which it is. */
const DRAW = { palette: drawPalette, legend: drawLegend, grid: drawGrid, thumbs: drawThumbs, head: drawHead, token: drawToken };

function drawAll() {
  options($("capture"), captures.map(({ name }, at) => (NUMBERED ? `${at + 1}  ` : "") + visible(name)), state.capture);
  drawPalette();
  writeLink();
}

/** Whether texts are told apart by numbers, because a name is too long for that or stands for two. */
const NUMBERED = captures.some(({ name }) => name.length > 28) || new Set(captures.map(({ name }) => name)).size < captures.length;

/** Return a button that goes to a place which is worth a look. */
function lookButton({ capture, head, query, key, says }) {
  const where = data.look.some((other) => other.capture !== capture) ? make("span", { class: "soft" }, ` in ${NUMBERED ? capture + 1 : visible(captures[capture].name)}`) : "";
  const go = () => switchTo(capture, { head, query, key, locked: key >= 0, hover: true, direction: "to" });
  return make("button", { onclick: go }, make("b", {}, captures[capture].names[head]), " ", ordered(visible(says)), where);
}

async function start() {
  Object.assign(state, shown.view, { hover: shown.view.key >= 0 });
  for (const [name, plain] of PLAIN) if (name === "view") state.view = String(plain);
  await readLink(location.hash || data.link);
  const plain = !/[&#](q|zoom)=/.test(location.hash || data.link), long = Math.max(shown.n, shown.m) > 40;
  if (plain && long && state.key >= 0) state.zoom = 4; // the finding can be read
  $("capture").hidden = captures.length < 2;
  $("look").replaceChildren(...data.look.map(lookButton));
  const arrows = "in the heads: another head; in the map: query and key; in lines and text: the token; on a picture: the patch";
  const known = Object.entries(KEYS).map(([key, [what]]) => [key, what]);
  const keys = [["← → ↑ ↓", arrows], ["Enter", "hold the token, let go"], ...known];
  $("keys").querySelector("dl").append(...keys.flatMap(([key, what]) => [make("dt", {}, key), make("dd", {}, what)]));
  $("app").hidden = false;
  drawAll();
  listen();
  document.body.dataset.ready = performance.now().toFixed(0);
}

/** Close the tables, which stand behind the scripts so that a long one holds up nothing. */
const whole = () => {
  for (const table of $("document").querySelectorAll("details")) {
    table.open = !document.documentElement.classList.contains("js");
    const said = { tabindex: 0, role: "region", "aria-label": table.firstElementChild.textContent };
    for (const room of table.querySelectorAll(".scroll")) for (const name in said) room.setAttribute(name, said[name]);
  }
  document.documentElement.classList.add("whole");
};
if (document.readyState === "loading") addEventListener("DOMContentLoaded", whole);
else whole();

start().catch((error) => {
  document.documentElement.classList.remove("js");
  $("failed").hidden = false;
  for (const table of $("document")?.querySelectorAll("details") ?? []) table.open = true; // it may not be read yet
  $("failed").textContent =
    `The interactive view could not start (${error.message}). The picture and the tables stand on their own.`;
});
