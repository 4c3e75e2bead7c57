"use strict";
// Numbers that are on the page become curves that answer. What it reads and offers: see interactive.py.
(() => {
const main = document.querySelector("main"), body = document.body;
const SPACE = document.querySelector("svg")?.namespaceURI;
const LETTER = 4.7; // width in a readout, at most on average: to measure it would lay out the page for every panel
const ROWS = 8; // of a readout, before seeds are shown by their ends
const WAIT = 300; // milliseconds until a moving cursor is written into the address: browsers limit how often one may

const unique = values => [...new Set(values)];
const find = (selector, within = document) => [...within.querySelectorAll(selector)];
const filled = (element, attributes, children = []) => {
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const node = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) => filled(document.createElementNS(SPACE, name), attributes, children);

const SCALES = {
  linear: v => v,
  log: Math.log10,
  symlog: (v, t, s) => Math.abs(v) <= t ? s * v : Math.sign(v) * t * (s + Math.log10(Math.abs(v) / t)),
};

function scale([kind, low, high, from, to, ...more]) {
  const [start, end] = [low, high].map(value => SCALES[kind](value, ...more));
  const map = value => from + (to - from) * (SCALES[kind](value, ...more) - start) / (end - start);
  return Object.assign(map, {low, high, from, to});
}

const arms = JSON.parse(main.dataset.arms || "[]");
const nets = new Map(arms.flatMap(arm => arm.nets.map(([name, seed]) => [name, {arm, seed}])));
const seeds = unique([...nets.values()].map(net => net.seed)).filter(seed => seed !== null).sort((a, b) => a - b);

const panels = find("svg.panel[data-axes]").map(svg => {
  const {x: axis, of: [x, y]} = JSON.parse(svg.dataset.axes), box = svg.parentElement;
  const [drawn, lit, over] = ["drawn", "lit", "over"].map(name => draw("g", {class: name}));
  svg.append(drawn, lit, over);
  return {key: box.id, title: svg.ariaLabel, svg, box, figure: svg.closest("figure"), axis, x: scale(x), y: scale(y),
    rows: JSON.parse(svg.dataset.rows), drawn, lit, over};
});

function parsed(text) {
  if (!text.includes('"')) return text.trimEnd().split("\n").map(line => line.split(",")); // three times as fast
  const rows = [[]], cell = /(?:"((?:[^"]|"")*)"|([^,\n]*))([,\n]|$)/y;
  while (cell.lastIndex < text.length) {
    const [, quoted, plain, end] = cell.exec(text);
    rows.at(-1).push(plain ?? quoted.replaceAll('""', '"'));
    if (end === "\n") rows.push([]);
  }
  return rows.filter(row => row.length);
}

async function load(link) {
  const [, packed, content] = link.getAttribute("href").match(/^data:.*?(;base64)?,(.*)$/s);
  if (!packed) return parsed(decodeURIComponent(content));
  const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
  return parsed(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
}

const read = figure => figure.csv ??= load(figure.querySelector("a[download]")).then(([columns, ...rows]) => ({columns, rows}));

const number = text => text?.endsWith("inf") ? Infinity * (text[0] === "-" ? -1 : 1) : text ? Number(text) : NaN;

const curves = panel => panel.promise ??= read(panel.figure).then(({columns, rows}) => {
  const its = panel.rows, places = its.places && new Map(Object.entries(its.places)), found = new Map();
  const [x, y, who, line, low, high] = ["x", "y", "who", "line", "low", "high"].map(role => columns.indexOf(its[role]));
  const where = Object.entries(its.where || {}).map(([column, values]) => [columns.indexOf(column), new Set(values)]);
  for (const row of rows) {
    if (where.some(([i, values]) => !values.has(row[i]))) continue;
    const at = places ? places.get(row[x]) : Number(row[x]), net = nets.get(row[who]);
    if (at === undefined || !net && its.who === "net") continue;
    const key = row[who] + "\0" + row[line];
    if (!found.has(key)) found.set(key, {who: row[who], line: row[line] || "", ...net, points: new Map()});
    found.get(key).points.set(at, {value: number(row[y]), text: row[y], low: row[low], high: row[high]});
  }
  panel.curves = [...found.values()];
  panel.stops = unique(panel.curves.flatMap(curve => [...curve.points.keys()])).sort((a, b) => a - b);
  panel.several = panel.curves.some(curve => curve.line !== panel.curves[0].line);
  return panel.curves;
});

// What is shown, and its address: #anchor&at=epoch:3&off=residual

const decoded = text => { try { return decodeURIComponent(text); } catch { return ""; } };
const coded = encodeURIComponent;
const listed = [set => [...set].map(coded).join(), text => new Set(text.split(",").filter(Boolean).map(decoded))];
const parts = {
  at: [at => at ? at.map(coded).join(":") : "", text => {
    const [axis, x] = text.split(":").map(decoded);
    return x && isFinite(x) ? [axis, Number(x)] : null;
  }],
  off: listed, seeds: listed, a: [coded, decoded], b: [coded, decoded], map: [coded, decoded],
};
const state = {}, hooks = [], told = () => hooks.forEach(hook => hook(state));
const pieces = () => location.hash.slice(1).split("&"), anchor = () => pieces().find(each => !each.includes("=")) || "";
let waiting;

function restore() {
  const found = new Map(pieces().map(each => each.split("=")));
  for (const [name, [, from]] of Object.entries(parts)) state[name] = from(found.get(name) || "");
  told();
}

function write(push) {
  clearTimeout(waiting);
  const said = Object.entries(parts).map(([name, [to]]) => to(state[name]) && `${name}=${to(state[name])}`);
  history[push ? "pushState" : "replaceState"](1, "", "#" + [anchor(), ...said].filter(Boolean).join("&"));
}

function change(part, push) {
  Object.assign(state, part);
  clearTimeout(waiting);
  if (push) write(true);
  else waiting = setTimeout(write, WAIT);
  told();
}

// An entry without our mark is a link within the page, just followed: what is shown stays.
addEventListener("popstate", () => {
  if (history.state || location.hash.includes("=")) restore();
  else { write(); reveal(); }
});

// A link into a section that is folded opens it.
function reveal() {
  const target = document.getElementById(decoded(anchor())), fold = target?.closest("section")?.firstElementChild;
  if (fold) fold.open = true;
  target?.scrollIntoView();
}

// Curves of what is chosen

const lacking = arm => arm.nets.some(([, seed]) => state.seeds.has(String(seed)));
const hidden = ({arm, seed}) => arm && (state.off.has(arm.arm) || state.seeds.has(String(seed)));
const colour = arm => arm?.colour || "var(--ink)";
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

// Curves that are drawn as one: seeds of an arm, each line of theirs for itself.
function groups(found) {
  const all = new Map();
  for (const curve of found.filter(curve => !hidden(curve))) {
    const {arm, line, who} = curve, key = (arm?.arm ?? who) + "\0" + line;
    if (!all.has(key)) all.set(key, {arm, line, curves: []});
    all.get(key).curves.push(curve);
  }
  return [...all.values()];
}

// [x, mean, smallest, largest, ends of the band] of several series (x -> number), where all are finite; as the page draws seeds.
function spread(series) {
  const shared = [...series[0].keys()].filter(x => series.every(each => isFinite(each.get(x)))).sort((a, b) => a - b);
  return shared.map(x => {
    const values = series.map(each => each.get(x)), middle = mean(values), low = Math.min(...values), high = Math.max(...values);
    const sd = values.length > 2 ? Math.sqrt(mean(values.map(value => (value - middle) ** 2)) * values.length / (values.length - 1)) : NaN;
    return [x, middle, low, high, Math.max(low, middle - sd), Math.min(high, middle + sd)];
  });
}

const series = curve => new Map([...curve.points].map(([x, point]) => [x, point.value]));

function path(points, x, y, look) {
  let pen = "M";
  const d = points.map(([at, value]) => {
    const place = [x(at), y(value)], drawn = place.every(isFinite), step = pen + place.map(each => each.toFixed(2)).join(" ");
    const lone = pen === "M" ? "h0" : ""; // a point without neighbours becomes a dot
    pen = drawn ? "L" : "M";
    return drawn ? step + lone : "";
  }).join("");
  return draw("path", {d, fill: "none", "stroke-linejoin": "round", "stroke-linecap": "round", ...look});
}

function bundle(points, x, y, colour, dash = "") {
  const of = column => points.map(point => [point[0], point[column]]), stroke = `stroke: ${colour}`;
  const bold = path(of(1), x, y, {style: stroke, "stroke-width": 1.6, "stroke-dasharray": dash});
  if (!points.length) return [];
  if (points.every(([, , low, high]) => low === high)) return [bold];
  const thin = [2, 3].map(column => path(of(column), x, y, {style: stroke, "stroke-width": .7, opacity: .6}));
  const band = isFinite(points[0][4]) ? [path([...of(4), ...of(5).reverse()], x, y, {style: `fill: ${colour}`, "fill-opacity": .18})] : [];
  return [...band, ...thin, bold];
}

// Arms that lack seeds are drawn anew, of those that are left; the page's own curves of them are hidden by a rule of its style.
function choose(panel) {
  const redrawn = panel.rows.who === "net" ? groups(panel.curves).filter(({arm}) => lacking(arm)) : [];
  panel.svg.classList.toggle("redrawn", panel.rows.who === "net");
  panel.drawn.replaceChildren(...redrawn.flatMap(({arm, curves}) => bundle(spread(curves.map(series)), panel.x, panel.y, arm.colour, arm.dash)));
}

let bright = null; // the seed that is lit up
function light(panel) {
  const its = panel.curves.filter(({arm, seed}) => bright !== null && seed === bright && !state.off.has(arm.arm));
  panel.lit.replaceChildren(...its.map(curve => path([...series(curve)], panel.x, panel.y, {style: `stroke: ${curve.arm.colour}`})));
}

// The cursor

let pointed = null; // [axis, x] under the pointer; it goes before what a click or a key has set
const cursor = () => pointed || state.at;
const short = text => text.length > 24 ? `${text.slice(0, 23)}…` : text;

// [arm, label, digits, mean] of each curve at x; where there are too many seeds, their smallest and largest.
function values(panel, x) {
  const found = groups(panel.curves.filter(curve => curve.points.has(x)));
  const crowded = found.flatMap(group => group.curves).length > ROWS;
  return found.flatMap(({arm, line, curves}) => {
    const points = curves.map(curve => curve.points.get(x)).sort((one, other) => one.value - other.value), count = curves.length;
    const middle = mean(points.map(point => point.value)), of = panel.several ? `, ${panel.rows.line === "epoch" ? "epoch " : ""}${line}` : "";
    if (crowded && count > 1) return [[arm, `${arm.arm}${of}, least`, points[0].text, middle], [arm, `${arm.arm}${of}, most of ${count}`, points.at(-1).text]];
    return curves.map(({who, points}, i) => {
      const {text, low, high} = points.get(x);
      return [arm, who + of, low ? `${text} (${low} … ${high})` : text, i ? NaN : middle];
    });
  });
}

const vertical = (x, from, to) => draw("path", {d: `M${x} ${from}V${to}`, class: "cursor"});

function mark(panel) {
  const {axis, x, y, over} = panel, [of, at] = cursor() || [], inside = of === axis && at >= x.low && at <= x.high;
  over.replaceChildren();
  panel.follow?.(inside ? at : null);
  if (!inside) return;
  const place = x(at), rows = values(panel, at), written = (...children) => draw("text", {x: 6}, ...children);
  const dots = rows.map(([arm, , , value]) => [arm, y(value)]).filter(([, top]) => isFinite(top));
  const lines = [written(`${axis} ${at}`), ...rows.map(([arm, label, digits]) =>
    written(draw("tspan", {style: `fill: ${colour(arm)}`}, "■ "), `${short(label)} ${digits}`))];
  lines.forEach((line, i) => line.setAttribute("y", 11 + 10 * i));
  const readout = draw("g", {class: "readout"}, ...lines);
  over.append(vertical(place, y.from, y.to), ...dots.map(([arm, cy]) =>
    draw("circle", {cx: place, cy, r: 2.6, style: `fill: ${colour(arm)}`, class: "dot"})), readout);
  const width = 14 + LETTER * Math.max(...lines.map(line => line.textContent.length)), start = place < (x.from + x.to) / 2 ? place + 6 : place - width - 6;
  readout.prepend(draw("rect", {width, height: 6 + 10 * lines.length, rx: 3}));
  readout.setAttribute("transform", `translate(${Math.max(2, Math.min(start, x.to - width)).toFixed(2)} ${y.to + 2})`);
}

const nearest = ({stops, x}, place) => stops.reduce((best, stop) => Math.abs(x(stop) - place) < Math.abs(x(best) - place) ? stop : best);

async function point(panel, event) {
  await curves(panel);
  const {left, width} = panel.svg.getBoundingClientRect(), place = (event.clientX - left) / width * panel.svg.viewBox.baseVal.width;
  return panel.stops.length ? [panel.axis, nearest(panel, place)] : null;
}

const KEYS = {ArrowLeft: i => i - 1, ArrowRight: i => i + 1, Home: () => 0, End: () => Infinity};

async function press(panel, event) {
  if (event.target !== panel.box || !(event.key in KEYS) || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  await curves(panel);
  const {stops, axis} = panel, [of, at] = cursor() || [];
  if (!stops.length) return;
  const here = of === axis ? stops.indexOf(nearest(panel, panel.x(at))) : event.key === "ArrowLeft" ? stops.length : -1;
  const x = stops[Math.max(0, Math.min(stops.length - 1, KEYS[event.key](here)))];
  pointed = null;
  change({at: [axis, x]});
  say([`${axis} ${x}`, ...values(panel, x).map(([, label, digits]) => `${label} ${digits}`)].join("; "));
}

addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  pointed = null;
  if (state.at) change({at: null}, true);
  marked();
});

// A and B: differences of series, seed by seed; with a single net, each of the others less it.

const minus = (one, other) => new Map([...one].map(([x, value]) => [x, value - other.get(x)]));

function differences(ones, others) {
  const single = ones.length < 2 || others.length < 2, partners = one => others.filter(other => single || other.seed === one.seed);
  return ones.flatMap(one => partners(one).map(other => minus(series(one), series(other))));
}

function compare(panel) {
  const {a, b} = state, {x, title, curves} = panel, {width} = panel.svg.viewBox.baseVal;
  panel.difference?.remove();
  panel.difference = panel.follow = null;
  if (!a || !b || a === b || panel.rows.who !== "net") return;
  const side = name => curves.filter(curve => !hidden(curve) && [curve.arm.arm, curve.who].includes(name)), ones = side(a), others = side(b);
  const of = (all, line) => all.filter(curve => curve.line === line);
  const found = unique(ones.map(curve => curve.line)).map(line => differences(of(ones, line), of(others, line))).filter(each => each.length);
  const drawn = found.map(spread), ends = [0, ...drawn.flat().flatMap(point => point.slice(2, 4))];
  if (ends.length < 2) return;
  const low = Math.min(...ends), high = Math.max(...ends), y = scale(["linear", low, high > low ? high : low + 1, 88, 18]);
  const text = (x, y, anchor, ...words) => draw("text", {x, y, "text-anchor": anchor}, ...words), value = text(x.to, 10, "end"), line = draw("g");
  const ticks = unique([low, 0, high]).filter(each => !each || Math.abs(y(each) - y(0)) > 9);
  panel.difference = draw("svg", {class: "difference", viewBox: `0 0 ${width} 94`, role: "img", "aria-label": `${title}: ${a} minus ${b}`},
    draw("path", {d: `M${x.from} ${y(0)}H${x.to}`, class: "zero"}),
    ...ticks.map(each => text(x.from - 4, y(each) + 3, "end", each && each.toPrecision(2))),
    text(x.from, 10, "start", `${short(a)} − ${short(b)}, ${found[0].length} pairs`), value, line,
    ...drawn.flatMap(points => bundle(points, x, y, "var(--ink)")));
  panel.box.append(panel.difference);
  panel.follow = at => {
    value.textContent = drawn.flat().filter(point => point[0] === at).map(point => point[1].toPrecision(4)).join(", ");
    line.replaceChildren(...at === null ? [] : [vertical(x(at), 88, 18)]);
  };
}

// A panel as a picture, with its legend, in the colours of now

function picture(panel) {
  const {width} = panel.svg.viewBox.baseVal, out = draw("svg"), root = getComputedStyle(document.documentElement);
  let height = 0;
  const put = (part, more, own) => {
    out.append(filled(part.cloneNode(true), {...more, height: own, y: height}));
    height += own;
  };
  for (const part of find("svg", panel.box)) put(part, {width, "data-axes": "", "data-rows": ""}, part.viewBox.baseVal.height);
  for (const entry of find(".legend li", panel.figure).filter(each => getComputedStyle(each).opacity === "1")) {
    put(entry.querySelector("svg"), {x: 8, width: 43}, 14);
    for (const words of entry.textContent.split(/\s(?=\()/)) out.append(draw("text", {x: 58, y: (height += 10) - 14, "font-size": 8}, words));
  }
  out.prepend(draw("style", {}, document.querySelector("style").textContent, "svg text { font-family: sans-serif !important; fill: var(--ink) }"),
    draw("rect", {width, height, fill: "var(--page)"}));
  filled(out, {class: body.className, viewBox: `0 0 ${width} ${height}`, width, height});
  return new XMLSerializer().serializeToString(out).replace(/var\((--[\w-]+)[^)]*\)/g, (_, name) => root.getPropertyValue(name).trim());
}

async function raster(panel) {
  const image = new Image(), canvas = node("canvas");
  image.src = `data:image/svg+xml,${coded(picture(panel))}`;
  await image.decode();
  Object.assign(canvas, {width: 3 * image.width, height: 3 * image.height});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise(done => canvas.toBlob(done));
}

function tools(panel) {
  const button = (label, click) => node("button", {type: "button", click, "aria-label": `${label}: ${panel.title}`}, label);
  const save = async (form, content) => {
    const href = URL.createObjectURL(new Blob([await content], {type: form === "svg" ? "image/svg+xml" : "image/png"}));
    node("a", {href, download: `${panel.key}.${form}`}).click();
    setTimeout(URL.revokeObjectURL, 6e4, href);
  };
  const copy = () => navigator.clipboard.write([new ClipboardItem({"image/png": raster(panel)})]).then(() => say("copied"), error => say(error.message));
  return node("div", {class: "tools"}, ...(navigator.clipboard ? [button("copy", copy)] : []),
    button("svg", () => save("svg", picture(panel))), button("png", () => save("png", raster(panel))));
}

// The bar

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
  hooks.push(() => { button.ariaPressed = !state[set].has(name); });
  return button;
}

function seedButton(seed) {
  const lit = now => () => { bright = now; visible(light); }, on = lit(seed), off = lit(null);
  return toggle(String(seed), "seeds", [seed], {"aria-label": `seed ${seed}`, pointerenter: on, pointerleave: off, focus: on, blur: off});
}

function choice(name) {
  const names = unique(["", ...arms.map(arm => arm.arm), ...nets.keys()]);
  const select = node("select", {change: () => change({[name]: select.value}, true)},
    ...names.map(value => node("option", {value}, value || "–")));
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

// Together. Only panels in or near the window are drawn into; the others when they come.

const visible = (...steps) => panels.filter(panel => panel.near && panel.curves).forEach(panel => steps.forEach(step => step(panel)));
const steps = [choose, light, compare, mark, move];

function marked() {
  here.textContent = cursor()?.join(" ") || "";
  visible(mark, move);
}

let chosen = "";
hooks.push(({at, off, seeds, a, b}) => {
  const now = JSON.stringify([[...off], [...seeds], a, b]);
  if (now !== chosen) {
    chosen = now;
    body.className = arms.flatMap((arm, i) => [off.has(arm.arm) && `off-${i}`, lacking(arm) && `lacks-${i}`].filter(Boolean)).join(" ");
    visible(choose, light, compare);
  }
  marked();
});

const seen = new IntersectionObserver(entries => entries.forEach(async ({target, isIntersecting}) => {
  const panel = panels.find(each => each.box === target);
  panel.near = isIntersecting;
  await curves(panel);
  if (panel.near) steps.forEach(step => step(panel));
}), {rootMargin: "200px"});

function open(panel) {
  filled(panel.box, {
    tabindex: 0, role: "group", "aria-label": `${panel.title}, by ${panel.axis}. Arrow keys read values.`,
    pointermove: async event => { pointed = await point(panel, event); marked(); },
    pointerleave: () => { pointed = null; marked(); },
    click: async event => {
      const at = !event.target.closest(".tools") && await point(panel, event);
      if (at) change({at}, true);
    },
    keydown: event => press(panel, event),
  });
  panel.svg.after(tools(panel));
  seen.observe(panel.box);
}

// What passes with the epochs. Frames: panel -> net -> epoch -> [x, y]; layers: measure -> {names, nets: net -> epoch -> texts}.
const frames = new Map(), layers = new Map(), atlas = document.getElementById("maps-figure");
const cut = text => text.trim().split(" "), spaced = text => cut(text).map(number), ascending = (one, other) => one - other;
const slot = (map, key, fresh = new Map()) => map.get(key) || map.set(key, fresh).get(key);
const epochsOf = nets => unique([...nets].flatMap(its => [...its.keys()])).sort(ascending);
const brief = epoch => Number(epoch.toFixed(4));

async function gather() {
  let places;
  for (const link of document.querySelectorAll('a[download$="-epochs.csv.gz"]'))
    for (const [key, net, epoch, x, y] of (await load(link)).slice(1)) {
      if (x) places = spaced(x);
      slot(slot(frames, key), net).set(Number(epoch), [places, spaced(y)]);
    }
  for (const [measure, net, epoch, found] of atlas ? (await read(atlas)).rows : [])
    if (!net) layers.set(measure, {names: found.split("/"), nets: new Map()});
    else slot(layers.get(measure).nets, net).set(Number(epoch), cut(found));
}

const keyOf = (measure, layer) => measure.replace("/*/", () => `/${layer}/`);
const until = (epochs, at) => epochs.findLast(epoch => epoch <= at) ?? epochs[0];

// What a panel shows at an epoch: of each net the last that there is until then.
function shownAt(panel, at) {
  const {measures = [], places = {}, where = {}} = panel.rows, found = [];
  const add = (line, its, points) => its?.forEach((epochs, name) => {
    const epoch = until(epochsOf([epochs]), at), net = nets.get(name);
    if (net && !hidden(net) && (where.net || [name]).includes(name)) found.push({...net, line, epoch, points: points(epochs.get(epoch))});
  });
  add("", frames.get(panel.key), points => points);
  for (const line of measures) {
    const {names = [], nets: its} = layers.get(line) || {};
    const x = names.map(layer => places[keyOf(line, layer)] ?? places[layer] ?? Number(layer.match(/\d+/)));
    add(line, its, texts => [x, texts.map(number)]);
  }
  return found;
}

function outline([x, y], panel) {
  const base = panel.y.from, up = value => Math.max(-999, Math.min(base, panel.y(value))).toFixed(1);
  return `M${panel.x(x[0])} ${base}${y.map((value, i) => `V${up(value)}H${panel.x(x[i + 1]).toFixed(1)}`).join("")}V${base}`;
}

function move(panel) {
  if (!frames.has(panel.key) && !panel.rows.measures) return;
  const at = cursor(), on = at?.[0] === "epoch", {svg, x, y} = panel, found = on ? shownAt(panel, at[1]) : [], lines = new Map();
  panel.frame ??= svg.insertBefore(draw("svg"), panel.over);
  panel.heading ??= [...svg.querySelectorAll("text")].find(each => each.textContent.includes(", epoch ")) || draw("text");
  panel.said ??= panel.heading.textContent;
  const epochs = unique(found.map(each => brief(each.epoch))).sort(ascending).join(" and ");
  panel.heading.textContent = on ? panel.said.replace(/, epoch .*/, `, epoch ${epochs}`) : panel.said;
  svg.classList.toggle("moved", on);
  const box = [x.from, y.to, x.to - x.from, y.from - y.to];
  filled(panel.frame, {x: box[0], y: box[1], width: box[2], height: box[3], viewBox: box.join(" ")});
  for (const each of found) slot(lines, each.arm.arm + "\0" + each.line, []).push(each);
  panel.frame.replaceChildren(...[...lines.values()].flatMap(its => {
    const {arm: {colour, dash}, points: [at, values]} = its[0];
    if (at.length > values.length) return its.map(each => draw("path", {d: outline(each.points, panel), "fill-opacity": .15,
      "stroke-width": 1.4, "stroke-dasharray": dash, style: `fill: ${colour}; stroke: ${colour}`}));
    const middle = spread(its.map(({points: [at, values]}) => new Map(at.map((place, i) => [place, values[i]]))));
    return middle.length ? bundle(middle, x, y, colour, dash) : [];
  }), draw("text", {x: x.to - 4, y: y.to + 10, "text-anchor": "end", class: "head"}, on ? `epoch ${epochs}` : ""));
}

function player() {
  const all = [...frames.values(), ...[...layers.values()].map(each => each.nets)];
  const stops = epochsOf(all.flatMap(nets => [...nets.values()])), last = stops.length - 1;
  if (last < 1) return;
  const go = i => change({at: ["epoch", stops[i]]}), still = matchMedia("(prefers-reduced-motion: reduce)");
  const slider = node("input", {type: "range", min: 0, max: last, value: last, "aria-label": "epoch", input: () => go(slider.value)});
  let timer = 0;
  const play = () => {
    const next = () => go(slider.value < last ? Number(slider.value) + 1 : 0);
    if (timer) timer = clearInterval(timer);
    else if (still.matches) next();
    else timer = setInterval(next, 200);
    button.textContent = timer ? "❚❚" : "▶";
  };
  const button = node("button", {type: "button", click: play, "aria-label": "play epochs"}, "▶");
  bar.append(node("span", {role: "group", "aria-label": "epochs"}, button, slider));
  hooks.push(() => {
    if (state.at?.[0] === "epoch") slider.value = stops.indexOf(until(stops, state.at[1]));
    slider.setAttribute("aria-valuetext", `epoch ${brief(stops[slider.value])}`);
  });
  addEventListener("keydown", event => {
    if (event.key !== " " || event.target.closest("button, input, select, a, summary, pre")) return;
    event.preventDefault();
    play();
  });
}

const EVEN = ["440154", "414487", "2a788e", "22a884", "7ad151", "fde725"], SIGNED = ["2166ac", "92c5de", "f7f7f7", "f4a582", "b2182b"];
const SHADES = 48, digits = value => Number.isFinite(value) ? value.toPrecision(4) : "–";
function mix(stops, share) {
  const at = share * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
  const [one, other] = [stops[i], stops[i + 1]].map(stop => stop.match(/../g).map(pair => parseInt(pair, 16)));
  return `rgb(${one.map((part, k) => Math.round(part + (other[k] - part) * (at - i)))})`;
}

// One map: cells by layer and epoch, in as many paths as there are shades.
function heat(title, {names, epochs, cells, low, high, back, stops}, pick) {
  const tall = Math.max(2.5, Math.min(9, 150 / names.length)), bottom = 18 + tall * names.length, wide = 220 / epochs.length;
  const paths = Array(SHADES).fill(""), left = i => 34 + i * wide, top = i => bottom - (i + 1) * tall, end = high > low ? high : low + 1;
  cells.forEach((row, i) => row.forEach((value, j) => {
    if (Number.isFinite(value)) paths[Math.min(SHADES - 1, Math.floor((value - low) / (end - low) * SHADES))] +=
      `M${left(j).toFixed(2)} ${top(i).toFixed(2)}h${wide.toFixed(2)}v${tall.toFixed(2)}h${-wide.toFixed(2)}z`;
  }));
  const fill = k => ({style: `fill: ${mix(stops, k / (SHADES - 1))}`, "shape-rendering": "crispEdges"});
  const label = (x, y, text, anchor = "start") => draw("text", {x, y, "text-anchor": anchor}, text);
  const some = (list, most) => list.map((each, i) => [each, i]).filter((_, i) => i % Math.ceil(list.length / most) === 0);
  const mark = draw("rect", {width: wide, height: tall, class: "cell", visibility: "hidden"}), line = draw("path", {class: "cursor"});
  let at = [0, epochs.length - 1];
  const put = (i, j, enter) => {
    at = [Math.max(0, Math.min(names.length - 1, i)), Math.max(0, Math.min(epochs.length - 1, j))];
    filled(mark, {x: left(at[1]), y: top(at[0]), visibility: "visible"});
    if (enter) pick(...at);
    else say(`${names[at[0]]}, epoch ${epochs[at[1]]}: ${digits(back(cells[at[0]][at[1]]))}`);
  };
  const STEPS = {ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0]};
  const svg = draw("svg", {class: "map", viewBox: `0 0 310 ${bottom + 28}`, tabindex: 0, role: "group",
    "aria-label": `${title}: layers by epochs. Arrow keys read cells, Enter shows all seeds.`,
    click: event => {
      const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      put(Math.floor((bottom - y) / tall), Math.floor((x - 34) / wide), true);
    },
    keydown: event => {
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      put(at[0] + STEPS[event.key][0], at[1] + STEPS[event.key][1], event.key === "Enter");
    }}, label(34, 12, title), ...paths.map((d, k) => draw("path", {d, ...fill(k)})), line, mark,
    ...some(names, 10).map(([name, i]) => label(30, top(i) + tall / 2 + 3, Number(name.match(/\d+/)), "end")),
    ...some(epochs, 6).map(([epoch, i]) => label(left(i) + wide / 2, bottom + 11, brief(epoch), "middle")),
    label(144, bottom + 23, "epoch", "middle"), draw("text", {transform: `translate(9 ${(18 + bottom) / 2}) rotate(-90)`, "text-anchor": "middle"}, "layer"),
    ...paths.map((_, k) => draw("rect", {x: 260, y: bottom - (k + 1) * (bottom - 18) / SHADES, width: 8, height: (bottom - 18) / SHADES + .3, ...fill(k)})),
    ...[0, .5, 1].map(share => label(271, bottom - share * (bottom - 18) + 3, back(low + share * (end - low)).toPrecision(3))));
  const show = () => line.setAttribute("d", state.at?.[0] === "epoch" ? `M${left(epochs.indexOf(until(epochs, state.at[1])) + .5)} ${bottom}V18` : "");
  const cell = (name, ...texts) => node(name, {}, ...texts), listing = node("table");
  const table = node("details", {toggle: () => listing.replaceChildren(node("tr", {}, ...["layer", ...epochs].map(each => cell("th", each))),
    ...cells.map((row, i) => node("tr", {}, cell("th", names[i]), ...row.map(value => cell("td", digits(back(value)))))))},
  cell("summary", "table"), node("div", {class: "scroll"}, listing));
  return {box: node("div", {}, svg, table), show};
}

let mapped = [];
function paint(select, box, behind) {
  const {names, nets: its} = layers.get(select.value), epochs = epochsOf(its.values());
  const kept = new Map(arms.map(arm => [arm, arm.nets.filter(([name, seed]) => its.has(name) && !hidden({arm, seed})).map(([name]) => name)]));
  const grids = [...kept].filter(([, names]) => names.length).map(([arm, who]) => [arm, names.map((_, i) => epochs.map(epoch =>
    mean(who.map(name => number(its.get(name).get(epoch)?.[i] ?? "")))))]);
  const flat = grids.flatMap(([, cells]) => cells.flat()).filter(Number.isFinite);
  const [low, high] = [Math.min, Math.max].map(end => flat.reduce((one, other) => end(one, other), flat[0] ?? 0));
  const log = low > 0 && high > 20 * low, there = log ? Math.log10 : value => value, back = log ? value => 10 ** value : value => value;
  const pick = arm => (i, j) => {
    change({at: ["epoch", epochs[j]]});
    const rows = [...kept].flatMap(([each, who]) => arm && each !== arm ? [] : who).map(name => [name, its.get(name).get(epochs[j])?.[i] ?? "–"]);
    behind.replaceChildren(node("table", {}, node("caption", {}, `${keyOf(select.value, names[i])}, epoch ${epochs[j]}`),
      ...rows.map(row => node("tr", {}, node("th", {}, row[0]), node("td", {class: "number"}, row[1])))));
  };
  const shared = {names, epochs, back};
  mapped = grids.map(([arm, cells]) => heat(`${arm.arm}${kept.get(arm).length > 1 ? `, mean of ${kept.get(arm).length} seeds` : ""}`,
    {...shared, cells: cells.map(row => row.map(there)), low: there(low), high: there(high), stops: EVEN}, pick(arm)));
  const find = name => grids.find(([arm]) => arm.arm === name), [one, other] = find(state.a) && find(state.b) ? [find(state.a), find(state.b)] : [grids[1], grids[0]];
  if (one && other) {
    const cells = one[1].map((row, i) => row.map((value, j) => there(value) - there(other[1][i][j])));
    const most = cells.flat().filter(Number.isFinite).reduce((top, value) => Math.max(top, Math.abs(value)), 0) || 1;
    mapped.push(heat(`${one[0].arm} ${log ? "over" : "−"} ${other[0].arm}`, {...shared, cells, low: -most, high: most, stops: SIGNED}, pick(null)));
  }
  box.replaceChildren(...mapped.map(each => each.box));
  behind.replaceChildren();
}

function maps() {
  if (!layers.size) return;
  const select = node("select", {change: () => change({map: select.value}, true)}, ...[...layers.keys()].map(name => node("option", {value: name}, name)));
  const box = node("div", {class: "maps"}), behind = node("div", {class: "scroll", "aria-live": "polite"});
  atlas.prepend(node("label", {}, "measure ", select), box, behind);
  let painted = "";
  hooks.push(() => {
    select.value = layers.has(state.map) ? state.map : layers.keys().next().value;
    const now = JSON.stringify([select.value, ...[state.off, state.seeds].map(set => [...set]), state.a, state.b]);
    if (now !== painted) paint(select, box, behind);
    painted = now;
    mapped.forEach(each => each.show());
  });
}

if (panels.length) {
  fill();
  restore();
  panels.forEach(open);
  gather().then(() => { player(); maps(); change({}); });
  write();
  reveal();
}
})();
