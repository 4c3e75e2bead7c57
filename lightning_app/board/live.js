(async () => {
const all = what => [...document.querySelectorAll(what)], live = document.getElementById("live"), {step} = live.dataset;
const box = each => each.getBoundingClientRect(), get = async url => (await fetch(url)).text();
const place = each => {
  const {id} = each.closest("[id]") ?? "", home = () => document.getElementById(id) ?? document.body;
  const like = () => [...home().querySelectorAll(each.localName)], i = like().indexOf(each);
  return () => like()[i] ?? home();
};
while (live.isConnected) try {
  await new Promise(end => setTimeout(end, 300));
  const seen = all("main > [id],#live").filter(each => box(each).bottom > 0 && box(each).top < innerHeight);
  const news = await get(`news${location.search || "?"}&step=${step}&looking=${seen.map(({id}) => id)}`);
  if (isNaN(news)) throw news;
  live.textContent = "";
  if (news === step || all(":active")[0]) continue;
  const page = await get(location), focus = place(document.activeElement), first = place(seen[0] ?? live), {top} = box(first());
  const kept = all("details,aside input,.scroll,pre").map(each => [place(each), each, each.scrollLeft, each.scrollTop]);
  document.open();
  document.write(page);
  document.close();
  for (const [at, {open, checked}, scrollLeft, scrollTop] of kept) Object.assign(at(), {open, checked, scrollLeft, scrollTop});
  focus().focus({preventScroll: true});
  scrollBy(0, box(first()).top - top);
} catch {
  live.textContent = "No answer from the board: see its terminal.";
}
})();
