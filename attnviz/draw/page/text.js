/* The text as running words, shaded by what the token attends to, and its strongest links. */

let words = { queries: [], keys: [] };

function makeWords() {
  if (makeWords.of === shown) return;
  makeWords.of = shown;
  const paragraph = (side, tokens) => {
    const spans = tokens.pieces.map((piece, at) => {
      const lead = /^\s*\n(?=.*\S)/s.exec(piece)?.[0] ?? "", own = piece.slice(lead.length); // lines between tokens
      const bare = visible(own.replace(/^ /, "")) || (piece ? "␣" : ""), special = tokens.special?.includes(at);
      const goes = (one, next) => next === "" || (/[\p{L}\p{N}]$/u.test(one ?? "") && /^[\p{L}\p{N}]/u.test(next ?? ""));
      const inWord = !special && (goes(tokens.pieces[at - 1], piece) || goes(piece, tokens.pieces[at + 1]));
      const look = special ? { class: "special", dir: "ltr" } : inWord ? { class: "part" } : {};
      const span = make("span", { ...look, role: "button", id: `${side}-${at}`, "aria-label": tokens.names[at], "data-at": at }, bare);
      const region = tokens.regions.find(([, start]) => start === at);
      const mark = region?.[0] ? make("sup", { dir: "ltr", "--series": regionColour(region[0]) }, region[0]) : "";
      const after = (special ? " " : "") + (own.includes("\n") ? "\n" : "");
      return [lead && visible(lead) + "\n", own.startsWith(" ") && at ? " " : "", mark, span, after];
    });
    words[side] = spans.map(([, , , span]) => span);
    return make("p", { dir: "auto", "data-side": side }, ...spans.flat());
  };
  const parts = [paragraph("queries", shown.queries)];
  words.keys = words.queries;
  if (shown.crossed) {
    parts.unshift(make("h3", {}, "Queries: the text that looks"));
    parts.push(make("h3", {}, "Keys: the text that is looked at"), paragraph("keys", shown.keys));
  }
  $("words").replaceChildren(...parts);
  $("words").classList.toggle("long", shown.n > 80);
}

function shadeWords() {
  const from = state.direction === "from", values = current();
  const sides = from ? ["keys", "queries"] : ["queries", "keys"], span = words[sides[0]][active()], box = $("words");
  const y = span && span.offsetTop - box.offsetTop, top = box.scrollTop, room = box.clientHeight;
  for (const other of new Set([...words.queries, ...words.keys])) {
    other.style.background = other.style.color = "";
    other.className = ["special", "part"].find((name) => other.classList.contains(name)) ?? "";
    if (shown.steps.length) other.classList.toggle("later", Number(other.dataset.at) > state.query);
    other.title = "";
    delete other.dataset.told;
  }
  for (const [at, value] of links(values)) {
    const other = words[sides[1]][at], word = tint(value);
    if (!other || strength(value) < 0.004) continue;
    other.style.background = css(word);
    other.style.color = inkOn(word);
    other.title = from ? read(value, at, Math.max(0, state.key)) : read(value, state.query, at);
  }
  if (span) {
    span.classList.add("q");
    box.setAttribute("aria-activedescendant", span.id);
    if (!box.matches(":hover") && (y < top || y + 24 > top + room)) box.scrollTop = y - room / 2;
  }
  const other = from ? state.query : state.key, place = found(), end = place && words.keys[place.key];
  if (end && !from && state.query === place.query) end.dataset.told = told(weight(place.query, place.key));
  if (other >= 0 && (state.hover || state.locked)) words[sides[1]][other]?.classList.add("k");
}

function drawTop() {
  const from = state.direction === "from", others = from ? shown.queries : shown.keys, found = links();
  const token = axis().names[active()];
  const strong = found.slice(0, 8).filter(([, value]) => strength(value) >= 0.005);
  const verb = directions()[state.direction], nothing = strong.length ? "" : " nothing that is left";
  const title = make("span", { class: "soft" }, make("b", {}, token), ` ${verb}${nothing}`);
  refill($("top"), title, ...strong.map(([at, value]) => make("button", {
    "--share": (strength(value) * 100).toFixed(1) + "%", "--fill": css(tint(shown.limit ? value / 4 : 0.06)),
    title: from ? read(value, at, Math.max(0, state.key)) : read(value, state.query, at),
    onclick: () => set({ ...(from ? { query: at } : { key: at }), locked: true, hover: true }, "token"),
  }, make("span", {}, others.names[at]), " ", make("b", {}, told(value)))));
  const value = state.key >= 0 ? weight(state.query, state.key) : NaN;
  const pair = value === value && (state.hover || state.locked)
    ? `${read(value, state.query, state.key)}  ${shown.queries.names[state.query]} → ${shown.keys.names[state.key]}` : "";
  const way = make("span", { class: "by-key" }, ": Esc lets go");
  const held = state.locked ? [make("span", { class: "screen-only" }, pair && "  (", "held", way, pair && ")")] : [];
  $("readout").replaceChildren(pair, ...held);
  clearTimeout(drawTop.timer);
  const most = strong.slice(0, 5).map(([at, v]) => `${others.names[at]} ${told(v)}`).join(", ");
  const name = $("name").textContent, label = $("say").dataset.head !== name && $("what").firstChild?.textContent;
  const say = `${name}${label ? `, ${label}` : ""}: ${token} ${verb} ${most}. ${pair}`;
  drawTop.timer = setTimeout(() => { $("say").textContent = say; $("say").dataset.head = name; }, 250);
}
