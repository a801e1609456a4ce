/* A written text, step by step: what the model wrote behind the query, and how likely it was. */

function drawStep() {
  const panel = $("step"), all = shown.steps, found = () => all.findIndex(([place]) => place === state.query);
  const at = found();
  panel.hidden = !all.length;
  if (panel.hidden) return;
  const go = (to) => set({ query: all[to][0], direction: "to", key: -1, locked: true, hover: true }, "head");
  // From where the query is when the button is pressed: keys may come faster than drawings.
  const next = (by) => (found() < 0 ? (state.query < all[0][0] ? -1 : all.length) : found()) + by;
  const press = (by) => () => all[next(by)] && go(next(by));
  const button = (sign, by, label) =>
    make("button", { "aria-label": label, "aria-disabled": !all[next(by)], onclick: press(by) }, sign);
  const told = ([token, p]) => `${ordered(token)} ${p == null ? "" : share(p)}`;
  const [, wrote, p, likely] = all[at] ?? [];
  const others = at < 0 ? [] : likely.filter(([token]) => token !== wrote).slice(0, 4).map(told);
  refill(
    panel,
    button("‹", -1, "Step before"), button("›", 1, "Next step"),
    ...(at < 0 ? ["The prompt: nothing was written here."]
      : [`Step ${at + 1} of ${all.length}: generated `, make("b", {}, told([wrote, p]))]),
    make("span", { class: "soft" }, others.length ? `not ${others.join(", ")}` : ""),
  );
}
