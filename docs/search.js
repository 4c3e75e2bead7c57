// Search that works from a file: the index is a script, because a page opened as a file can load a script but fetch nothing.
(() => {
  const home = new URL(".", document.currentScript.src);
  const MOST = 30; // results
  const [BEFORE, AFTER] = [60, 140]; // characters around a word that was found

  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children); // strings become text nodes: nothing from the index is read as HTML
    return made;
  };

  const box = element("input", { type: "text", placeholder: "Search ( / )", autocomplete: "off", spellcheck: false });
  box.setAttribute("aria-label", "Search");
  const status = element("p", { role: "status" });
  const list = element("ol");
  const panel = element("div", { className: "search-results", hidden: true }, status, list);
  document.querySelector(".wy-side-nav-search").append(element("div", { role: "search" }, box));
  document.body.append(panel);

  let index; // a promise, once somebody wants to search: most readers never do
  const load = () => (index ??= new Promise((resolve, reject) => {
    const script = element("script", { src: new URL("search-index.js", home).href });
    script.onload = () => resolve(searchIndex.map((entry) => ({
      ...entry,
      head: entry.title.toLowerCase(),
      place: `${entry.page} ${entry.location}`.toLowerCase(), // a function's full name is in its location
      body: entry.text.toLowerCase(),
    })));
    script.onerror = () => reject(new Error(`${script.src} cannot be read`));
    document.head.append(script);
  }));

  // 0 unless every word is there. A word counts most in the section's title, then in the page's, then in the text.
  const score = (entry, words) => {
    let sum = 0;
    for (const word of words) {
      const times = Math.min(entry.body.split(word).length - 1, 3);
      const points = 10 * entry.head.includes(word) + 4 * entry.place.includes(word) + times;
      if (points === 0) return 0;
      sum += points;
    }
    const query = words.join(" ");
    return sum + 20 * (entry.head === query) + 5 * entry.body.includes(query);
  };

  const marked = (text, words) => {
    const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    const parts = text.split(new RegExp(`(${escaped.join("|")})`, "gi"));
    return parts.map((part, i) => (i % 2 ? element("mark", {}, part) : part)); // odd ones are what was split at
  };

  const excerpt = ({ body, text }, words) => {
    const longest = words.filter((word) => body.includes(word)).sort((one, other) => other.length - one.length)[0];
    const from = Math.max(body.indexOf(longest ?? "") - BEFORE, 0); // the longest says most
    return (from ? "… " : "") + text.slice(from, from + BEFORE + AFTER) + (from + BEFORE + AFTER < text.length ? " …" : "");
  };

  const item = (entry, words) => element("li", {},
    element("a", { href: new URL(entry.location, home).href }, ...marked(entry.title, words)),
    entry.title === entry.page ? "" : element("small", {}, ` in ${entry.page}`),
    element("p", {}, ...marked(excerpt(entry, words), words)));

  const search = async () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    panel.hidden = words.length === 0;
    if (panel.hidden) return;
    try {
      const scored = (await load()).map((entry) => [score(entry, words), entry]).filter(([points]) => points > 0);
      scored.sort(([one], [other]) => other - one); // stable: equal ones stay in the order of the pages
      const number = scored.length > MOST ? `The first ${MOST} of ${scored.length}` : scored.length || "No";
      status.replaceChildren(`${number} ${scored.length === 1 ? "section has" : "sections have"} all these words.`);
      list.replaceChildren(...scored.slice(0, MOST).map(([, entry]) => item(entry, words)));
    } catch (error) {
      status.replaceChildren(`Search does not work: ${error.message}.`);
    }
  };

  const close = () => { panel.hidden = true; };
  const links = () => [...list.querySelectorAll("a")];
  box.addEventListener("input", search);
  box.addEventListener("focus", search);
  list.addEventListener("click", (event) => { if (event.target.closest("a")) close(); }); // it may be this page's own section
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing) box.focus();
    else if (event.key === "Escape" && !panel.hidden) { box.blur(); close(); }
    else if (event.key === "Enter" && document.activeElement === box) links()[0]?.click();
    else if (/^Arrow(Up|Down)$/.test(event.key) && !panel.hidden) {
      const stops = [box, ...links()]; // Tab goes through them too
      stops[stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
    } else return;
    event.preventDefault();
  });
})();
