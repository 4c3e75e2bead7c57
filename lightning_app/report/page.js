"use strict";
// Numbers that are on the page become curves that answer. What it reads and offers: see interactive.py.
(() => {
const main = document.querySelector("main"), body = document.body;
const SPACE = document.querySelector("svg")?.namespaceURI;
const ROWS = 8; // of a readout, before seeds are shown by their ends
const WAIT = 300; // milliseconds until a moving cursor is written into the address: browsers limit how often one may

const filled = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const node = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) => filled(document.createElementNS(SPACE, name), attributes, children);

const SCALES = {
  linear: [v => v, u => u],
  log: [Math.log10, u => 10 ** u],
  symlog: [
    (v, t, s) => Math.abs(v) <= t ? s * v : Math.sign(v) * t * (s + Math.log10(Math.abs(v) / t)),
    (u, t, s) => Math.abs(u) <= s * t ? u / s : Math.sign(u) * t * 10 ** (Math.abs(u) / t - s),
  ],
};

function scale([kind, low, high, from, to, threshold, stretch]) {
  const [there, back] = SCALES[kind], start = there(low, threshold, stretch);
  const slope = (to - from) / (there(high, threshold, stretch) - start);
  const map = value => from + slope * (there(value, threshold, stretch) - start);
  map.back = place => back(start + (place - from) / slope, threshold, stretch);
  return Object.assign(map, {low, high, from, to});
}

const arms = JSON.parse(main.dataset.arms || "[]").map((arm, number) => ({...arm, number}));
const nets = new Map(arms.flatMap(arm => arm.nets.map(([name, seed]) => [name, {arm, seed}])));
const seeds = [...new Set([...nets.values()].map(net => net.seed))].filter(seed => seed !== null).sort((a, b) => a - b);

const panels = [...document.querySelectorAll("svg.panel[data-axes]")].map(svg => {
  const {x: axis, of: [x, y]} = JSON.parse(svg.dataset.axes);
  const box = svg.parentElement, [drawn, lit, over] = ["drawn", "lit", "over"].map(name => draw("g", {class: name}));
  svg.append(drawn, lit, over);
  const rows = JSON.parse(svg.dataset.rows);
  return {key: box.id, title: svg.getAttribute("aria-label"), svg, box, figure: svg.closest("figure"), axis, rows,
    x: scale(x), y: scale(y), drawn, lit, over, near: false};
});

function parsed(text) {
  if (!text.includes('"')) return text.trimEnd().split("\n").map(line => line.split(","));
  const rows = [[]], cell = /(?:"((?:[^"]|"")*)"|([^,\n]*))([,\n]|$)/y;
  while (cell.lastIndex < text.length) {
    const [, quoted, plain, end] = cell.exec(text);
    rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if (end === "\n") rows.push([]);
  }
  return rows.filter(row => row.length);
}

async function text(uri) {
  const [head, content] = [uri.slice(0, uri.indexOf(",")), uri.slice(uri.indexOf(",") + 1)];
  if (!head.endsWith("base64")) return decodeURIComponent(content);
  const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const files = new Map();
function read(figure) {
  if (!files.has(figure)) files.set(figure, text(figure.querySelector("a[download]").getAttribute("href"))
    .then(parsed).then(([columns, ...rows]) => ({columns, rows})));
  return files.get(figure);
}

function curves(panel) {
  return panel.promise ??= read(panel.figure).then(({columns, rows}) => {
    const its = panel.rows, places = its.places && new Map(Object.entries(its.places));
    const [x, y, who, line, low, high] = ["x", "y", "who", "line", "low", "high"].map(role => columns.indexOf(its[role]));
    const where = Object.entries(its.where || {}).map(([column, values]) => [columns.indexOf(column), new Set(values)]);
    const found = new Map();
    for (const row of rows) {
      const at = places ? places.get(row[x]) : Number(row[x]), net = nets.get(row[who]);
      if (at === undefined || !net && its.who === "net" || !where.every(([i, values]) => values.has(row[i]))) continue;
      const key = JSON.stringify([row[who], row[line]]);
      if (!found.has(key)) found.set(key, {who: row[who], line: row[line] || "", ...net, points: new Map()});
      found.get(key).points.set(at, {value: number(row[y]), text: row[y], low: number(row[low]), high: number(row[high])});
    }
    panel.curves = [...found.values()];
    panel.stops = [...new Set(panel.curves.flatMap(curve => [...curve.points.keys()]))].sort((a, b) => a - b);
    return panel.curves;
  });
}

const number = text => text === "inf" ? Infinity : text === "-inf" ? -Infinity : text ? Number(text) : NaN;

const decoded = text => { try { return decodeURIComponent(text); } catch { return ""; } };
const listed = [set => [...set].map(encodeURIComponent).join(","), text => new Set(text.split(",").filter(Boolean).map(decoded))];
const named = [text => encodeURIComponent(text), decoded];
const parts = {
  at: [at => at ? at.map(encodeURIComponent).join(":") : "", text => {
    const [axis, x] = text.split(":").map(decoded);
    return x && Number.isFinite(Number(x)) ? [axis, Number(x)] : null;
  }],
  off: listed, seeds: listed, a: named, b: named,
};
const state = {}, hooks = [];
let waiting = 0;

function restore() {
  const found = new Map(location.hash.slice(1).split("&").map(each => each.split("=", 2)));
  for (const [name, [, from]] of Object.entries(parts)) state[name] = from(found.get(name) || "");
  hooks.forEach(hook => hook(state));
}

function write(push) {
  clearTimeout(waiting);
  const anchor = location.hash.slice(1).split("&").find(each => !each.includes("=")) || "";
  const said = Object.entries(parts).map(([name, [to]]) => [name, to(state[name])]).filter(([, text]) => text);
  history[push ? "pushState" : "replaceState"](1, "", "#" + [anchor, ...said.map(each => each.join("="))].filter(Boolean).join("&"));
}

function change(part, push) {
  Object.assign(state, part);
  if (push) write(true);
  else { clearTimeout(waiting); waiting = setTimeout(write, WAIT); }
  hooks.forEach(hook => hook(state));
}

// An entry without our mark is a link within the page, just followed: what is shown stays.
addEventListener("popstate", () => history.state || location.hash.includes("=") ? restore() : write());

const hidden = curve => curve.arm && (state.off.has(curve.arm.arm) || state.seeds.has(String(curve.seed)));
const lacking = arm => arm.nets.some(([, seed]) => state.seeds.has(String(seed)));
const colour = arm => arm ? arm.colour : "var(--ink)";
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

// Curves that are drawn as one: seeds of an arm, each line of theirs for itself.
function groups(found) {
  const all = new Map();
  for (const curve of found.filter(curve => !hidden(curve))) {
    const key = JSON.stringify([curve.arm ? curve.arm.number : curve.who, curve.line]);
    if (!all.has(key)) all.set(key, {arm: curve.arm, line: curve.line, curves: []});
    all.get(key).curves.push(curve);
  }
  return [...all.values()];
}

// Mean, band and ends over several series (x -> number), where all have a finite number; as the page draws seeds.
function spread(series) {
  const shared = [...series[0].keys()].filter(x => series.every(each => Number.isFinite(each.get(x)))).sort((a, b) => a - b);
  return shared.map(x => {
    const values = series.map(each => each.get(x)), middle = mean(values), low = Math.min(...values), high = Math.max(...values);
    const sd = Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
    const banded = values.length > 2;
    return {x, mean: middle, low, high, from: banded ? Math.max(low, middle - sd) : NaN, to: banded ? Math.min(high, middle + sd) : NaN};
  });
}

const valuesOf = curve => new Map([...curve.points].map(([x, point]) => [x, point.value]));

function path(points, x, y, look) {
  let pen = "M";
  const d = points.map(([at, value]) => {
    const [left, top] = [x(at), y(value)];
    if (!Number.isFinite(left + top)) { pen = "M"; return ""; }
    const step = `${pen}${left.toFixed(2)} ${top.toFixed(2)}${pen === "M" ? "h0" : ""}`; // a lone point becomes a dot
    pen = "L";
    return step;
  }).join("");
  return draw("path", {d, fill: "none", "stroke-linejoin": "round", "stroke-linecap": "round", ...look});
}

function bundle(points, x, y, look, dash = "") {
  const line = (end, width, opacity) => path(points.map(point => [point.x, point[end]]), x, y,
    {style: `stroke: ${look}`, "stroke-width": width, opacity, ...(width > 1 && dash && {"stroke-dasharray": dash})});
  if (points.every(point => point.low === point.high)) return [line("mean", 1.6, 1)];
  const round = [...points.map(point => [point.x, point.from]), ...points.map(point => [point.x, point.to]).reverse()];
  const band = Number.isFinite(points[0].from) ? [path(round, x, y, {style: `fill: ${look}`, "fill-opacity": .18})] : [];
  return [...band, line("low", .7, .6), line("high", .7, .6), line("mean", 1.6, 1)];
}

// Arms that lack seeds are drawn anew, of those that are left; of the others the page's own curves are shown.
function choose(panel) {
  const redrawn = panel.rows.who === "net" ? arms.filter(lacking) : [];
  for (const each of panel.svg.querySelectorAll("[data-arm]"))
    if (redrawn.includes(arms[each.dataset.arm])) each.style.display = "none";
  const partial = groups(panel.curves).filter(({arm}) => redrawn.includes(arm));
  panel.drawn.replaceChildren(...partial.flatMap(({arm, curves}) => {
    const points = spread(curves.map(valuesOf));
    return points.length ? bundle(points, panel.x, panel.y, arm.colour, arm.dash) : [];
  }));
}

let bright = null; // the seed that is lit up
function light(panel) {
  const its = bright === null ? [] : panel.curves.filter(curve => curve.seed === bright && !state.off.has(curve.arm.arm));
  panel.lit.replaceChildren(...its.flatMap(curve => [["var(--page)", 5], [colour(curve.arm), 2.4]].map(([stroke, width]) =>
    path([...curve.points].map(([x, point]) => [x, point.value]), panel.x, panel.y, {style: `stroke: ${stroke}`, "stroke-width": width}))));
}

let pointed = null; // [axis, x] under the pointer, before what was set by a click or a key
const cursor = () => pointed || state.at;
const short = (text, letters = 24) => text.length > letters ? `${text.slice(0, letters - 1)}…` : text;

// [arm, label, digits, mean] of each curve at x; where there are too many seeds, their smallest and largest.
function values(panel, x) {
  const found = groups(panel.curves.filter(curve => curve.points.has(x)));
  const crowded = found.reduce((sum, group) => sum + group.curves.length, 0) > ROWS;
  return found.flatMap(({arm, line, curves}) => {
    const points = curves.map(curve => curve.points.get(x)).sort((one, other) => one.value - other.value);
    const middle = mean(points.map(point => point.value)), label = name => [name, line && panel.lines > 1 ? line : ""].filter(Boolean).join(", ");
    if (crowded && curves.length > 1)
      return [[arm, `${label(arm.arm)}, ${curves.length} seeds`, `${points[0].text} … ${points.at(-1).text}`, middle]];
    return curves.map(({who, points}, i) => {
      const {text, low, high} = points.get(x);
      const band = Number.isFinite(low) ? ` (${low} … ${high})` : "";
      return [arm, label(who), text + band, i ? NaN : middle];
    });
  });
}

function mark(panel) {
  const at = cursor(), inside = at && at[0] === panel.axis && at[1] >= panel.x.low && at[1] <= panel.x.high;
  panel.over.replaceChildren();
  panel.mark?.(inside ? at[1] : null);
  if (!inside) return;
  const place = panel.x(at[1]), {from, to} = panel.y, rows = values(panel, at[1]);
  panel.over.append(draw("path", {d: `M${place} ${from}V${to}`, class: "cursor"}));
  for (const [arm, , , value] of rows)
    if (Number.isFinite(panel.y(value)))
      panel.over.append(draw("circle", {cx: place, cy: panel.y(value), r: 2.6, style: `fill: ${colour(arm)}`, class: "dot"}));
  const head = draw("text", {x: 6, y: 11, class: "head"}, `${panel.axis} ${at[1]}`);
  const lines = rows.map(([arm, label, digits], i) => draw("text", {x: 6, y: 21 + 10 * i},
    draw("tspan", {style: `fill: ${colour(arm)}`}, "■ "), `${short(label)} `, draw("tspan", {class: "digits"}, digits)));
  const readout = draw("g", {class: "readout"}, head, ...lines);
  panel.over.append(readout);
  const {width} = readout.getBBox(), left = panel.x.from, right = panel.x.to;
  const start = place < (left + right) / 2 ? place + 6 : place - width - 18;
  readout.prepend(draw("rect", {width: width + 12, height: 16 + 10 * lines.length, rx: 3}));
  readout.setAttribute("transform", `translate(${Math.max(2, Math.min(start, right - width - 10)).toFixed(2)} ${to + 2})`);
}

const nearest = (stops, x, panel) => stops.reduce((best, stop) => Math.abs(panel.x(stop) - x) < Math.abs(panel.x(best) - x) ? stop : best, stops[0]);

async function point(panel, event) {
  await curves(panel);
  const frame = panel.svg.getBoundingClientRect(), x = (event.clientX - frame.left) / frame.width * panel.svg.viewBox.baseVal.width;
  return panel.stops.length ? [panel.axis, nearest(panel.stops, x, panel)] : null;
}

const KEYS = {ArrowLeft: (i) => i - 1, ArrowRight: (i) => i + 1, Home: () => 0, End: (_, last) => last};

async function press(panel, event) {
  if (event.target !== panel.box || !(event.key in KEYS) || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  await curves(panel);
  const {stops} = panel, at = cursor(), known = at && at[0] === panel.axis;
  if (!stops.length) return;
  const here = known ? stops.indexOf(nearest(stops, panel.x(at[1]), panel)) : event.key === "ArrowLeft" ? stops.length : -1;
  const x = stops[Math.max(0, Math.min(stops.length - 1, KEYS[event.key](here, stops.length - 1)))];
  pointed = null;
  change({at: [panel.axis, x]});
  say([`${panel.axis} ${x}`, ...values(panel, x).map(([, label, digits]) => `${label} ${digits}`)].join("; "));
}

addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  pointed = null;
  if (state.at) change({at: null}, true);
  marked();
});

// Curves of an arm or of one net, by its name.
const side = (panel, name) => panel.curves.filter(curve => !hidden(curve) && (curve.arm?.arm === name || curve.who === name));

// Differences as series: seed by seed where both have them, with a single net each of the others, else of the means.
function differences(ones, others) {
  const minus = (one, other) => new Map([...one].filter(([x]) => other.has(x)).map(([x, value]) => [x, value - other.get(x)]));
  const all = [ones, others].map(each => each.map(valuesOf));
  const shared = ones.map((one, i) => [i, others.findIndex(other => other.seed === one.seed && one.seed !== null)]).filter(([, j]) => j >= 0);
  if (ones.length > 1 && others.length > 1 && shared.length) return shared.map(([i, j]) => minus(all[0][i], all[1][j]));
  if (ones.length > 1 && others.length > 1) {
    const means = all.map(each => new Map(spread(each).map(point => [point.x, point.mean])));
    return [minus(...means)];
  }
  return all[0].flatMap(one => all[1].map(other => minus(one, other)));
}

function compare(panel) {
  panel.box.querySelector(".difference")?.remove();
  panel.mark = null;
  const {a, b} = state;
  if (!a || !b || a === b || panel.rows.who !== "net") return;
  const [ones, others] = [a, b].map(name => side(panel, name));
  const drawn = [...new Set(ones.map(curve => curve.line))].flatMap(line => {
    const [one, other] = [ones, others].map(each => each.filter(curve => curve.line === line));
    const found = one.length && other.length ? differences(one, other) : [];
    const points = found.length ? spread(found) : [];
    return points.length ? [{line, points, count: found.length}] : [];
  });
  if (!drawn.length) return;
  const ends = [0, ...drawn.flatMap(({points}) => points.flatMap(({low, high}) => [low, high]))];
  const [low, high] = [Math.min(...ends), Math.max(...ends)], y = scale(["linear", low, high > low ? high : low + 1, 88, 18]);
  const {from, to} = panel.x, label = value => draw("text", {x: from - 4, y: y(value) + 3, "text-anchor": "end"}, value ? value.toPrecision(2) : "0");
  const across = draw("path", {d: `M${from} ${y(0)}H${to}`, class: "zero"}), value = draw("text", {x: to, y: 10, "text-anchor": "end"}), line = draw("g");
  panel.box.append(draw("svg", {class: "difference", viewBox: `0 0 ${panel.svg.viewBox.baseVal.width} 94`, role: "img",
    "aria-label": `${panel.title}: ${a} minus ${b}`}, across, ...(low < 0 ? [label(low)] : []), label(0), ...(high > 0 ? [label(high)] : []),
    draw("text", {x: from, y: 10, class: "head"}, `${short(a)} − ${short(b)}${drawn[0].count > 1 ? `, ${drawn[0].count} pairs` : ""}`), value, line,
    ...drawn.flatMap(({points}) => bundle(points, panel.x, y, "var(--ink)"))));
  panel.mark = x => {
    const here = drawn.map(({points}) => points.find(point => point.x === x)).filter(Boolean);
    value.textContent = here.map(point => point.mean.toPrecision(4)).join(", ");
    line.replaceChildren(...(x === null ? [] : [draw("path", {d: `M${panel.x(x)} 88V18`, class: "cursor"})]));
  };
}

function picture(panel) {
  const {width} = panel.svg.viewBox.baseVal, ground = getComputedStyle(body).backgroundColor;
  const out = draw("svg"), entries = [...panel.figure.querySelectorAll(".legend li")].filter(entry => !entry.classList.contains("off"));
  let height = 0;
  for (const part of panel.box.querySelectorAll("svg")) {
    const copy = part.cloneNode(true), own = part.viewBox.baseVal.height;
    for (const name of ["data-axes", "data-rows"]) copy.removeAttribute(name);
    out.append(filled(copy, {width, height: own, y: height}, []));
    height += own;
  }
  for (const entry of entries) {
    const swatch = filled(entry.querySelector("svg").cloneNode(true), {x: 8, y: height, width: 43, height: 14}, []);
    out.append(swatch, draw("text", {x: 58, y: height + 10, "font-size": 9}, entry.textContent));
    height += 16;
  }
  const rules = [...document.styleSheets[0].cssRules].map(rule => rule.cssText).filter(rule => /^\.(over|difference|readout)/.test(rule));
  out.prepend(draw("style", {}, ...rules, "text{font-family:sans-serif!important;fill:var(--ink)}"), draw("rect", {width, height: height + 8, fill: ground}));
  filled(out, {viewBox: `0 0 ${width} ${height + 8}`, width, height: height + 8}, []);
  const root = getComputedStyle(document.documentElement);
  return new XMLSerializer().serializeToString(out).replace(/var\((--[\w-]+)[^)]*\)/g, (_, name) => root.getPropertyValue(name).trim());
}

async function raster(panel) {
  const image = new Image(), canvas = node("canvas");
  image.src = `data:image/svg+xml,${encodeURIComponent(picture(panel))}`;
  await image.decode();
  Object.assign(canvas, {width: 3 * image.width, height: 3 * image.height});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise(done => canvas.toBlob(done));
}

function save(blob, name) {
  const href = URL.createObjectURL(blob);
  node("a", {href, download: name}).click();
  setTimeout(URL.revokeObjectURL, 60_000, href);
}

function tools(panel) {
  const button = (label, click) => node("button", {type: "button", click, "aria-label": `${label}: ${panel.title}`}, label);
  const copy = async () => {
    await navigator.clipboard.write([new ClipboardItem({"image/png": raster(panel)})]);
    say("copied");
  };
  return node("div", {class: "tools"}, ...(navigator.clipboard ? [button("copy", copy)] : []),
    button("svg", () => save(new Blob([picture(panel)], {type: "image/svg+xml"}), `${panel.key}.svg`)),
    button("png", async () => save(await raster(panel), `${panel.key}.png`)));
}

const spoken = node("p", {class: "spoken", "aria-live": "polite"}), here = node("output");
const bar = node("div", {class: "bar", role: "toolbar", "aria-label": "What is shown"});
const say = text => { spoken.textContent = text; };

function toggle(name, set, shown, attributes = {}) {
  const click = () => {
    const now = new Set(state[set]);
    if (!now.delete(name)) now.add(name);
    change({[set]: now}, true);
  };
  const button = node("button", {type: "button", click, ...attributes}, ...shown);
  hooks.push(() => button.setAttribute("aria-pressed", !state[set].has(name)));
  return button;
}

function seedButton(seed) {
  const on = () => { bright = seed; visible(light); }, off = () => { bright = null; visible(light); };
  return toggle(String(seed), "seeds", [String(seed)], {"aria-label": `seed ${seed}`, pointerenter: on, pointerleave: off, focus: on, blur: off});
}

function choice(name) {
  const option = value => node("option", {value}, value || "–"), names = [...new Set(["", ...arms.map(arm => arm.arm), ...nets.keys()])];
  const select = node("select", {change: () => change({[name]: select.value}, true)}, ...names.map(option));
  hooks.push(() => { select.value = state[name]; });
  return node("label", {}, name.toUpperCase(), select);
}

function fill() {
  const line = ({colour, dash}) => draw("svg", {viewBox: "0 0 22 8", "aria-hidden": true},
    draw("path", {d: "M0 4H22", style: `stroke: ${colour}`, "stroke-width": 2.4, "stroke-dasharray": dash}));
  const group = (label, ...children) => node("span", {role: "group", "aria-label": label}, ...children);
  bar.append(group("arms", ...arms.map(arm => toggle(arm.arm, "off", [line(arm), arm.arm]))));
  if (seeds.length > 1) bar.append(group("seeds", "seeds", ...seeds.map(seedButton)));
  if (nets.size > 1) bar.append(group("difference A minus B", choice("a"), "−", choice("b")));
  bar.append(here);
  main.after(bar, spoken);
}

const visible = (...steps) => panels.forEach(panel => panel.near && panel.curves && steps.forEach(step => step(panel)));
const marked = () => {
  const at = cursor();
  here.textContent = at ? `${at[0]} ${at[1]}` : "";
  visible(mark);
};
const all = panel => [choose, light, compare, mark].forEach(step => step(panel));

function show() {
  for (const each of document.querySelectorAll(".legend [data-arm]")) each.classList.toggle("off", state.off.has(arms[each.dataset.arm].arm));
  for (const svg of document.querySelectorAll("svg.panel")) {
    const drawn = [...svg.querySelectorAll("[data-arm]")], gone = each => state.off.has(arms[each.dataset.arm].arm);
    for (const each of drawn) each.style.display = gone(each) ? "none" : "";
    svg.parentElement.classList.toggle("off", drawn.length > 0 && drawn.every(gone));
  }
}

let chosen = "";
hooks.push(() => {
  const {at, ...rest} = state, now = JSON.stringify(rest, (_, value) => value instanceof Set ? [...value] : value);
  if (now !== chosen) {
    chosen = now;
    show();
    visible(choose, light, compare);
  }
  marked();
});

const seen = new IntersectionObserver(entries => entries.forEach(async ({target, isIntersecting}) => {
  const panel = panels.find(each => each.box === target);
  panel.near = isIntersecting;
  if (!isIntersecting) return;
  await curves(panel);
  panel.lines = new Set(panel.curves.map(curve => curve.line)).size;
  all(panel);
}), {rootMargin: "200px"});

function open(panel) {
  const {box} = panel;
  filled(box, {
    tabindex: 0, role: "group", "aria-label": `${panel.title}, by ${panel.axis}. Arrow keys read values.`,
    pointermove: async event => { pointed = await point(panel, event); marked(); },
    pointerleave: () => { pointed = null; marked(); },
    click: async event => { if (!event.target.closest(".tools")) change({at: await point(panel, event)}, true); },
    keydown: event => press(panel, event),
  }, []);
  panel.svg.after(tools(panel));
  seen.observe(box);
}

if (panels.length) {
  fill();
  restore();
  panels.forEach(open);
  write();
  document.getElementById(decoded(location.hash.slice(1).split("&").find(each => !each.includes("=")) || ""))?.scrollIntoView();
  document.documentElement.dataset.ready = "";
}
})();
