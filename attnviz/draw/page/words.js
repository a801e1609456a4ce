/* Words, numbers and elements. What comes from a model or a text is written only with textContent,
   fillText, setAttribute of a label, or escaped into a saved file: it can never act. */

/** @type {(id: string) => any} */
const $ = (id) => document.getElementById(id);

/** Return a new element: attributes by name, `on…` as listeners, children as nodes or plain text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (value != null && (value !== false || name.startsWith("aria-"))) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Replace what stands in an element; a button that had the focus hands it to the one in its place. */
function refill(box, ...children) {
  const at = [...box.querySelectorAll("button")].indexOf(document.activeElement);
  box.replaceChildren(...children);
  const buttons = box.querySelectorAll("button");
  if (at >= 0) (buttons[Math.min(at, buttons.length - 1)] ?? box.previousElementSibling).focus({ preventScroll: true });
}

/** Let keys reach what scrolls in a part of the page, under the title that stands above it. */
function reach(part) {
  for (const room of part.querySelectorAll(".scroll, .maps > div")) {
    const scrolls = room.scrollWidth > room.clientWidth || room.scrollHeight > room.clientHeight, titles = [...document.querySelectorAll("h1, h2, summary")];
    const name = titles.filter((title) => title.compareDocumentPosition(room) & 4).pop()?.textContent;
    for (const [key, value] of Object.entries({ tabindex: 0, role: "group", "aria-label": name }))
      if (scrolls) room.setAttribute(key, value);
      else room.removeAttribute(key);
  }
}

const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const code = (letter) => letter < " " ? String.fromCharCode(0x2400 + letter.charCodeAt(0))
  : `<U+${letter.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;

/** Return a text whose controls are written out as `visible` of draw.labels does. */
const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(CONTROLS, code);

/** Return a text that keeps its order next to numbers and arrows, even if it is written from the right. */
const ordered = (text) => text.replace(/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]+/g, "$&\u200e");

/** Return a weight as papers write it: .53, 1.0; one below what the digits show as <.01. plus: whether a sign is written above zero. */
function share(value, digits = 2, plus = false) {
  if (Number.isNaN(value)) return "–";
  const text = Math.abs(value).toFixed(digits), sign = value < 0 ? "−" : plus && value > 0 ? "+" : "";
  if (value && Number(text) === 0) return sign + "<" + (10 ** -digits).toFixed(digits).slice(1);
  return sign + (Number(text) >= 1 ? Number(text).toFixed(Math.max(1, digits - 1)) : text.replace(/^0/, ""));
}

/** Return a number with its sign. */
const signed = (value, digits = 2) =>
  (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);

/** Fill a select with choices {value: words}. */
function options(select, choices, chosen) {
  const option = ([value, said]) => make("option", { value, selected: value === String(chosen) }, said);
  select.replaceChildren(...Object.entries(choices).map(option));
}
