/* Pages without a map to look into: light or dark, what the pointer is on, and what scrolls can be reached by keys. */
{
  const told = $("told"), root = document.documentElement;
  const turn = () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; };
  const tell = ({ target }) => { told.textContent = target.closest(".tip")?.textContent ?? ""; };
  for (const kind of ["pointerover", "pointerdown"]) document.addEventListener(kind, tell);
  $("theme").addEventListener("click", turn);
  addEventListener("keydown", (event) => {
    if (event.key === "d" && !event.ctrlKey && !event.metaKey && !event.altKey && !(event.target instanceof HTMLSelectElement)) turn();
  });
  reach(document);
  addEventListener("resize", () => reach(document));
}
