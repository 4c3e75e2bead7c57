(async () => {
const all = what => [...document.querySelectorAll(what)], live = document.getElementById("live"), scrolled = new Set();
const box = each => each.getBoundingClientRect(), rest = () => new Promise(end => setTimeout(end, 300));
const place = each => {
  const {id} = each.closest("[id]") ?? "", home = () => document.getElementById(id) ?? document.body;
  const value = of => of.getAttribute("value"); // runs change places when another one is the newest
  const like = () => [...home().querySelectorAll(each.localName)].filter(other => value(other) === value(each)), i = like().indexOf(each);
  return () => like()[i] ?? home();
};
all("main")[0].addEventListener("scroll", ({target}) => scrolled.add(target), true);
await rest();
while (live.isConnected) try {
  const seen = all("main > [id],#live").filter(each => box(each).bottom > 0 && box(each).top < innerHeight);
  const about = `&step=${live.dataset.step}&looking=${seen.map(({id}) => id)}`;
  const news = await fetch(`news${location.search || "?"}${about}`), page = await news.text();
  if (!news.ok) throw page;
  live.textContent = "";
  if (!page) continue;
  while (all(":active")[0]) await rest();
  const focus = place(document.activeElement), first = place(seen[0] ?? live), {top} = box(first());
  const kept = all("details,aside input").map(each => [place(each), each]);
  const moved = [...scrolled].map(each => [place(each), each.scrollLeft, each.scrollTop]);
  for (let last = setTimeout(rest); last; last--) clearTimeout(last); // what this page plays ends with it
  document.open();
  document.write(page);
  document.close();
  for (const [at, {open, checked, defaultChecked}] of kept) Object.assign(at(), checked === defaultChecked ? {open} : {checked});
  for (const [at, ...to] of moved) at().scrollTo(...to);
  focus().focus({preventScroll: true});
  scrollBy(0, box(first()).top - top);
} catch {
  live.textContent = "No answer from the board: see its terminal.";
  await rest();
}
})();
