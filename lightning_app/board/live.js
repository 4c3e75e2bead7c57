(() => {
const all = what => [...document.querySelectorAll(what)], live = document.getElementById("live");
const home = id => document.getElementById(id) ?? document.body, box = each => each.getBoundingClientRect();
const place = each => {
  const {id} = each.closest("[id]") ?? document.body, name = each.localName;
  return [id, name, [...home(id).querySelectorAll(name)].indexOf(each)];
};
const at = ([id, name, i]) => i < 0 ? home(id) : home(id).querySelectorAll(name)[i] ?? {};
const get = async address => (await fetch(address)).text();
const follow = async () => {
  const query = new URLSearchParams(location.search), {step} = live.dataset;
  const seen = all("main > [id]").filter(each => box(each).bottom > 0 && box(each).top < innerHeight), first = seen[0] ?? live;
  for (const {id} of seen) query.append("looking", id);
  query.set("step", step);
  const news = await get("news?" + query);
  if (isNaN(news)) throw news;
  live.textContent = "";
  if (news === step || all(":active")[0]) return setTimeout(safely, 200);
  const page = await get(location.href.split("#")[0]), focus = place(document.activeElement), {top} = box(first);
  const kept = all("details,aside input,.scroll,pre").map(each => [place(each), each, each.scrollLeft, each.scrollTop]);
  document.open();
  document.write(page);
  document.close();
  for (const [where, {open, checked}, scrollLeft, scrollTop] of kept) Object.assign(at(where), {open, checked, scrollLeft, scrollTop});
  at(focus).focus?.({preventScroll: true});
  scrollBy(0, box(home(first.id)).top - top);
};
const safely = () => follow().catch(() => {
  live.textContent = "No answer from the board: see its terminal.";
  setTimeout(safely, 2000);
});
setTimeout(safely, 500);
})();
