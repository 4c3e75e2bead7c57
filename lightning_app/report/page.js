"use strict";
// Numbers that are on the page become curves that answer. What it reads and offers: see interactive.py.
(() => {
const find = (selector, within = document) => [...within.querySelectorAll(selector)];
const [bar, here, spoken] = find(".bar,output,.spoken"), body = document.body; // in the order of the page
const {abs, log10, max, min} = Math;
const LETTER = 4.7; // width in a readout, at most on average: to measure it would lay out the page for every panel
const ROWS = 8; // of a readout, before seeds are shown by their ends
const WAIT = 300; // milliseconds until a moving cursor is written into the address: browsers limit how often one may

const grouped = (list, key) => [...Map.groupBy(list, key).values()];
const ascending = values => [...new Set(values)].sort((one, other) => one - other);
const filled = (element, attributes, children = []) => {
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const maker = of => (name, attributes = {}, ...children) =>
  filled(document.createElementNS(of?.namespaceURI, name), attributes, children);
const node = maker(body), draw = maker(find("svg")[0]);
const label = (x, y, text, anchor = "start", more = {}) => draw("text", {x, y, "text-anchor": anchor, ...more}, text);
const slot = (map, key, fresh = new Map()) => map.get(key) || map.set(key, fresh).get(key);
const reached = label => ({tabindex: 0, role: "group", "aria-label": label});
const say = text => spoken.textContent = text;

const SCALES = {
  linear: v => v,
  log: log10,
  symlog: (v, t, s) => abs(v) <= t ? s * v : Math.sign(v) * t * (s + log10(abs(v) / t)),
};

function scale([kind, low, high, from, to, ...more]) {
  const there = value => SCALES[kind](value, ...more), start = there(low), end = there(high);
  return Object.assign(value => from + (to - from) * (there(value) - start) / (end - start), {low, high, from, to});
}

const arms = JSON.parse(find("main")[0].dataset.arms || "[]");
const nets = new Map(arms.flatMap(arm => arm.nets.map(([who, seed]) => [who, {arm, who, seed: String(seed)}])));

const panels = new Map(find("[data-axes]").map(svg => [svg.parentElement, {svg, box: svg.parentElement, title: svg.ariaLabel}]));

// With what a panel needs when it is first near the window.
function prepared(panel) {
  const {svg, box} = panel, {x: axis, of: [x, y]} = JSON.parse(svg.dataset.axes);
  for (const name of ["drawn", "lit", "over"]) svg.append(panel[name] = draw("g", {class: name}));
  Object.assign(panel, {key: box.id, figure: svg.closest("figure"), axis, x: scale(x), y: scale(y),
    rows: JSON.parse(svg.dataset.rows)});
  svg.after(tools(panel));
  return panel;
}

function parsed(text) {
  if (!text.includes('"')) return text.trimEnd().split("\n").map(line => line.split(",")); // three times as fast
  const rows = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^,\n]*))([,\n]|$)/g)) {
    rows.at(-1).push(plain ?? quoted.replaceAll('""', '"'));
    if (end === "\n") rows.push([]);
  }
  return rows.filter(row => row.length > 1);
}

async function load(link) {
  const file = await fetch(link.href), packed = link.download.endsWith("z");
  return parsed(await (packed ? new Response(file.body.pipeThrough(new DecompressionStream("gzip"))) : file).text());
}

const read = figure => figure.csv ??= load(figure.querySelector("a[download]"));
const number = text => +(text?.replace("inf", "Infinity") || NaN);

// A panel's own curves, and those of all nets: {who, line, arm, seed, values: Map(x -> number), cells: Map(x -> [text, low, high])}
const curves = panel => panel.promise ??= read(prepared(panel).figure).then(([columns, ...rows]) => {
  const its = panel.rows, {where = {}} = its, places = its.places && new Map(Object.entries(its.places)), found = new Map();
  const [x, y, who, line, ...ends] = ["x", "y", "who", "line", "low", "high"].map(role => columns.indexOf(its[role]));
  for (const [column, wanted] of Object.entries(where)) {
    const i = columns.indexOf(column);
    if (i !== who) rows = rows.filter(row => wanted.includes(row[i]));
  }
  for (const row of rows) {
    const at = places ? places.get(row[x]) : +row[x], name = row[who], net = nets.get(name);
    if (at === undefined || !net && its.who === "net") continue;
    const curve = slot(found, name + "\0" + row[line], {who: name, line: row[line] || "", ...net, values: new Map(), cells: new Map()});
    curve.values.set(at, number(row[y]));
    curve.cells.set(at, [y, ...ends].map(i => row[i]));
  }
  panel.all = [...found.values()];
  panel.curves = panel.all.filter(curve => (where.net || [curve.who]).includes(curve.who));
  panel.stops = ascending(panel.curves.flatMap(curve => [...curve.values.keys()]));
  panel.several = panel.curves.some(curve => curve.line !== panel.curves[0].line);
});

// What is shown, and its address: #anchor&at=epoch:3&off=residual

const state = {}, hooks = [];
const address = () => location.hash.slice(1), anchor = () => address().split("&").find(each => !each.includes("=")) || "";
let waiting;

function restore() {
  const found = new URLSearchParams(address()), [, axis, x] = found.get("at")?.match(/(.*):(.+)/) || [];
  for (const name of ["a", "b", "map"]) state[name] = found.get(name);
  for (const name of ["off", "seeds"]) state[name] = found.getAll(name);
  change({at: isFinite(x) ? [axis, +x] : null});
}

function write(push) {
  const said = Object.entries({...state, at: state.at?.join(":")}).flatMap(([name, value]) =>
    [value || []].flat().map(each => `${name}=${encodeURIComponent(each).replace("%3A", ":")}`));
  history[push ? "pushState" : "replaceState"](1, "", "#" + [anchor(), ...said].filter(Boolean).join("&"));
}

function change(part, push) {
  Object.assign(state, part);
  clearTimeout(waiting);
  if (push) write(true);
  else waiting = setTimeout(write, WAIT);
  hooks.forEach(hook => hook());
}

// An entry without our mark is a link within the page, just followed: what is shown stays.
addEventListener("popstate", () => {
  if (history.state || address().includes("=")) restore();
  else { write(); reveal(); }
});

// A link into a section that is folded opens it.
function reveal() {
  const target = document.getElementById(new URLSearchParams("=" + anchor()).get("")), fold = target?.closest("section")?.firstElementChild;
  if (fold) fold.open = true;
  target?.scrollIntoView();
}

// Curves of what is chosen

const lacking = arm => arm.nets.some(([, seed]) => state.seeds.includes(String(seed)));
const hidden = ({arm, seed}) => arm && (state.off.includes(arm.arm) || state.seeds.includes(seed));
const look = colour => ({style: `color:${colour}`});
const mean = values => values.reduce((sum, value) => sum + value, 0) / values.length;

// Curves that are drawn as one: seeds of an arm, each line of theirs for itself.
const groups = found => grouped(found.filter(curve => !hidden(curve)), ({arm, line, who}) => (arm?.arm ?? who) + "\0" + line);

// [x, mean, smallest, largest, ends of the band] of several series (x -> number), where all are finite; as the page draws seeds.
const spread = series => ascending(series[0].keys()).filter(x => series.every(each => isFinite(each.get(x)))).map(x => {
  const values = series.map(each => each.get(x)), count = values.length, middle = mean(values), low = min(...values), high = max(...values);
  const sd = count > 2 ? Math.sqrt(mean(values.map(value => (value - middle) ** 2)) * count / (count - 1)) : NaN;
  return [x, middle, low, high, max(low, middle - sd), min(high, middle + sd)];
});

function path(points, x, y, more) {
  let pen;
  const d = points.map(([at, value]) => {
    const place = [x(at), y(value)].map(each => each.toFixed(2)), begun = pen;
    pen = place.every(isFinite);
    return !pen ? "" : begun ? `L${place}` : `M${place}h0`; // a point without neighbours is a dot
  }).join("");
  return draw("path", {d, ...more});
}

function bundle(points, x, y, colour, dash = "", opacity = 1) {
  const of = column => points.map(point => [point[0], point[column]]), made = (kind, places, more) => path(places, x, y, {class: kind, ...look(colour), ...more});
  if (!points.length) return [];
  const bold = made("bold", of(1), {"stroke-dasharray": dash, opacity});
  if (points.every(([, , low, high]) => low === high)) return [bold];
  const band = isFinite(points[0][4]) ? [made("band", [...of(4), ...of(5).reverse()])] : [];
  return [...band, made("thin", of(2)), made("thin", of(3)), bold];
}

// Arms that lack seeds are drawn anew, of those that are left; the page's own curves of them are hidden by a rule of its style.
function choose({rows: {who}, curves, drawn, svg, x, y}) {
  const redrawn = who === "net" ? groups(curves).filter(([{arm}]) => lacking(arm)) : [];
  svg.classList.toggle("redrawn", who === "net");
  drawn.replaceChildren(...redrawn.flatMap(its => bundle(spread(its.map(each => each.values)), x, y, its[0].arm.colour, its[0].arm.dash)));
}

let bright = null; // the seed that is lit up
function light({curves, lit, x, y}) {
  const its = curves.filter(({arm, seed}) => seed === bright && !state.off.includes(arm.arm));
  lit.replaceChildren(...its.map(curve => path([...curve.values], x, y, look(curve.arm.colour))));
}

// The cursor

let pointed = null; // [axis, x] under the pointer; it goes before what a click or a key has set
const cursor = () => pointed || state.at || [];
const short = (text, most = 24) => text.length > most ? text.slice(0, most - 1) + "…" : text;

// [arm, label, digits, mean] of each curve at x; where there are too many seeds, their smallest and largest.
function values({curves, rows, several}, x) {
  const found = groups(curves.filter(curve => curve.values.has(x))), crowded = found.flat().length > ROWS;
  return found.flatMap(its => {
    const [{arm, line}] = its, middle = mean(its.map(curve => curve.values.get(x))), count = its.length;
    const of = several ? `, ${rows.line === "epoch" ? "epoch " + brief(+line) : line}` : "", text = curve => curve.cells.get(x)[0];
    if (crowded && count > 1) {
      const sorted = its.toSorted((a, b) => text(a) - text(b) || isNaN(text(a)) - isNaN(text(b))); // what is not finite comes last
      return [[arm, `${arm.arm}${of}, min`, text(sorted[0]), middle], [arm, `${arm.arm}${of}, max of ${count}`, text(sorted.at(-1))]];
    }
    return its.map((curve, i) => {
      const [text, low, high] = curve.cells.get(x);
      return [arm, curve.who + of, low ? `${text} (${low} … ${high})` : text, i ? NaN : middle];
    });
  });
}

const vertical = (x, from, to) => draw("path", {d: `M${x} ${from}V${to}`, class: "cursor"});

function mark(panel) {
  const {axis, x, y, over} = panel, [of, at] = cursor(), inside = of === axis && at >= x.low && at <= x.high;
  over.replaceChildren();
  panel.follow?.(inside ? at : null);
  if (!inside) return;
  const place = x(at), rows = values(panel, at).map(([arm, ...row]) => [look(arm?.colour), ...row]);
  const lines = [[`${axis} ${at}`], ...rows.map(([its, name, digits]) => [draw("tspan", its, "■ "), `${short(name, 36)} ${digits}`])];
  const width = 24 + LETTER * max(...lines.map(line => line.at(-1).length)), start = place < (x.from + x.to) / 2 ? place + 6 : place - width - 6;
  over.append(vertical(place, y.from, y.to),
    ...rows.map(([its, , , value]) => ({cx: place, cy: y(value), class: "dot", ...its})).filter(({cy}) => isFinite(cy)).map(its => draw("circle", its)),
    draw("g", {class: "readout", transform: `translate(${max(2, min(start, x.to - width)).toFixed(2)} ${y.to + 2})`},
      draw("rect", {width, height: 6 + 10 * lines.length}), ...lines.map((line, i) => draw("text", {x: 6, y: 11 + 10 * i}, ...line))));
}

const nearest = ({stops, x}, place) => stops.toSorted((one, other) => abs(x(one) - place) - abs(x(other) - place))[0];

async function point(panel, event) {
  await curves(panel);
  const {left, width} = panel.svg.getBoundingClientRect();
  return panel.stops.length ? [panel.axis, nearest(panel, (event.clientX - left) / width * panel.svg.viewBox.baseVal.width)] : null;
}

const KEYS = {ArrowLeft: i => i - 1, ArrowRight: i => i + 1, Home: () => 0, End: () => Infinity};

async function press(panel, event) {
  if (event.target !== panel.box || !(event.key in KEYS) || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  await curves(panel);
  const {stops, axis} = panel, [of, at] = cursor();
  if (!stops.length) return;
  const here = of === axis ? stops.indexOf(nearest(panel, panel.x(at))) : event.key === "ArrowLeft" ? stops.length : -1;
  const x = stops[max(0, min(stops.length - 1, KEYS[event.key](here)))];
  pointed = null;
  change({at: [axis, x]});
  say([`${axis} ${x}`, ...values(panel, x).map(([, label, digits]) => `${label} ${digits}`)].join("; "));
}

addEventListener("keydown", event => {
  if (event.key === "Escape") change({at: pointed = null}, state.at);
});

// A and B: differences of series, seed by seed; with a single net, each of the others less it.
// Those of unknown seed ("null") have no partner: NaN is not 0.
function differences(ones, others) {
  const single = ones.length < 2 || others.length < 2;
  return ones.flatMap(one => others.filter(other => single || other.seed - one.seed === 0)
    .map(other => new Map([...one.values].map(([x, value]) => [x, value - other.values.get(x)]))));
}

function compare(panel) {
  const {a, b} = state, {x, title, all} = panel, {width} = panel.svg.viewBox.baseVal;
  panel.difference?.remove();
  panel.difference = panel.follow = null;
  if (a === b || panel.rows.who !== "net") return;
  const lines = grouped(all.filter(curve => !hidden(curve)), curve => curve.line);
  const both = lines.map(its => [a, b].map(name => its.filter(({arm, who}) => arm.arm === name || who === name))).filter(sides => sides.every(each => each[0]));
  if (!both[0]) return;
  const found = both.map(sides => differences(...sides)).filter(each => each[0]), [one, other] = both[0].map(each => each.length);
  const drawn = found.map(spread), ends = [0, ...drawn.flat().flatMap(point => point.slice(2, 4))], count = found[0]?.length;
  const pairs = ends.length < 2 ? "none in common" : count < 2 ? "1 pair" : min(one, other) < 2 ? `${one} − ${other} nets` : `${count} pairs`;
  const low = min(...ends), high = max(...ends), y = scale(["linear", low, high > low ? high : 1, 88, 18]);
  const value = label(x.to, 10, "", "end"), line = draw("g");
  const ticks = ascending([low, 0, high]).filter(each => !each || abs(y(each) - y(0)) > 9);
  panel.difference = draw("svg", {class: "difference", viewBox: `0 0 ${width} 94`, role: "img", "aria-label": `${title}: ${a} minus ${b}`},
    draw("path", {d: `M${x.from} ${y(0)}H${x.to}`, class: "zero"}),
    ...ticks.map(each => label(x.from - 4, y(each) + 3, each && each.toPrecision(2), "end")),
    label(x.from, 10, `${short(a)} − ${short(b)}, ${pairs}`, "start", {class: "title"}), value, line,
    ...drawn.flatMap((points, i) => bundle(points, x, y, "var(--ink)", "", (i + 1) / drawn.length)));
  panel.box.append(panel.difference);
  panel.follow = at => {
    value.textContent = drawn.flat().filter(point => point[0] === at).map(point => digits(point[1])).join(", ");
    line.replaceChildren(...at === null ? [] : [vertical(x(at), 88, 18)]);
  };
}

// A panel as a picture, with its legend, in the colours of now

function picture({svg, box, figure}) {
  const {width} = svg.viewBox.baseVal, out = draw("svg");
  let height = 0;
  const put = (part, more, own) => {
    out.append(filled(part.cloneNode(true), {...more, height: own, y: height}));
    height += own;
  };
  for (const part of find(":scope > svg", box)) put(part, {width, "data-axes": "", "data-rows": ""}, part.viewBox.baseVal.height);
  for (const entry of find(".legend li", figure).filter(each => getComputedStyle(each).opacity === "1")) {
    put(entry.querySelector("svg"), {x: 8, width: 43}, 14);
    for (const words of entry.textContent.split(/\s(?=\()/)) out.append(label(58, (height += 10) - 14, words));
  }
  out.prepend(draw("style", {}, find("style")[0].textContent),
    draw("rect", {width, height, fill: "var(--page)"}));
  filled(out, {class: `${body.className} picture`, viewBox: `0 0 ${width} ${height}`, width, height});
  return new XMLSerializer().serializeToString(out).replace(/var\((--[\w-]+)[^)]*\)/g, (_, name) => getComputedStyle(body).getPropertyValue(name));
}

// So many pixels.
function pixels(width, height, paint) {
  const canvas = node("canvas", {width, height});
  paint(canvas.getContext("2d"));
  return canvas;
}

async function raster(panel) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(picture(panel))}`;
  await image.decode();
  const width = 3 * image.width, height = 3 * image.height;
  return new Promise(done => pixels(width, height, pen => pen.drawImage(image, 0, 0, width, height)).toBlob(done));
}

function tools(panel) {
  const button = (label, click) => node("button", {type: "button", click, "aria-label": `${label}: ${panel.title}`}, label);
  const save = (form, made) => button(form, async () =>
    node("a", {href: URL.createObjectURL(new Blob([await made(panel)])), download: `${panel.key}.${form}`}).click());
  const copy = () => navigator.clipboard.write([new ClipboardItem({"image/png": raster(panel)})]).then(() => say("copied"), say);
  return node("div", {class: "tools"}, ...(navigator.clipboard ? [button("copy", copy)] : []), save("svg", picture), save("png", raster));
}

// The bar: a button's or a list's name is a part of the state, and its value what it is about.

for (const each of find("[name]", bar)) {
  const {name, value, options} = each, lit = now => () => { bright = now; visible(light, move); }, on = lit(value), off = lit(null);
  filled(each, {[options ? "change" : "click"]: () =>
    change({[name]: options ? each.value : [...new Set(state[name]).symmetricDifference(new Set([value]))]}, true)});
  if (name === "seeds") filled(each, {pointerenter: on, pointerleave: off, focus: on, blur: off});
  hooks.push(() => {
    if (options) each.value = state[name] || "";
    else each.ariaPressed = !state[name].includes(value);
  });
}

// Together. Only panels in or near the window are drawn into; the others when they come.

const visible = (...steps) => panels.forEach(panel => panel.near && panel.curves && steps.forEach(step => step(panel)));

function marked() {
  here.textContent = cursor().join(" ");
  visible(mark, move);
}

let chosen = "";
hooks.push(() => {
  const {off} = state, now = JSON.stringify({...state, at: null}); // wherever the cursor is
  if (now !== chosen) {
    chosen = now;
    body.className = arms.flatMap((arm, i) => [off.includes(arm.arm) && `off-${i}`, lacking(arm) && `lacks-${i}`].filter(Boolean)).join(" ");
    for (const {box, svg} of panels.values()) {
      const its = find("[data-arm]", svg);
      box.hidden = its.length && its.every(each => off.includes(arms[each.dataset.arm].arm));
    }
    visible(choose, light, compare);
  }
  marked();
});

const seen = new IntersectionObserver(entries => entries.forEach(async ({target, isIntersecting}) => {
  const panel = panels.get(target);
  panel.near = isIntersecting;
  if (!panel.near) return;
  await curves(panel);
  [choose, light, compare, mark, move].forEach(step => step(panel));
}), {rootMargin: "100px"});

function open(panel, box) {
  filled(box, {
    ...panel.svg.dataset.rows.includes('"who"') && reached(`${panel.title}. Arrow keys read values.`), // a histogram has no curves
    pointermove: async event => { pointed = await point(panel, event); marked(); },
    pointerleave: () => { pointed = null; marked(); },
    click: async event => {
      const at = !event.target.closest(".tools") && await point(panel, event);
      if (at) change({at}, true);
    },
    keydown: event => press(panel, event),
  });
  seen.observe(box);
}

// What passes with the epochs. Frames: panel -> net -> epoch -> [x, y]; layers: measure -> {names, nets: net -> epoch -> texts}.
const frames = new Map(), layers = new Map(), atlas = find("#maps-figure")[0];
const cut = text => text.trim().split(" ");
const epochsOf = nets => ascending([...nets].flatMap(its => [...its.keys()]));
const brief = epoch => +epoch.toFixed(4);

async function gather() {
  let places;
  for (const link of find('a[download$="-epochs.csv.gz"]'))
    for (const [key, net, epoch, x, y] of (await load(link)).slice(1)) {
      if (x) places = x;
      slot(slot(frames, key), net).set(+epoch, [places, y]);
    }
  for (const [measure, net, epoch, found] of atlas ? (await read(atlas)).slice(1) : [])
    if (!net) layers.set(measure, {names: found.split("/"), nets: new Map()});
    else slot(layers.get(measure).nets, net).set(+epoch, cut(found));
  player();
  maps();
  change({});
}

const keyOf = (measure, layer) => measure.replace("/*/", () => `/${layer}/`);
const until = (epochs, at) => epochs.findLast(epoch => epoch <= at) ?? epochs[0];
const placeIn = epochs => state.at?.[0] === "epoch" ? epochs.indexOf(until(epochs, state.at[1])) : -1;

// What a panel shows at an epoch: of each net the last that there is until then.
function shownAt({key, rows: {measures = [], places = {}, where = {}}}, at) {
  const found = [];
  const add = (line, its, points) => its?.forEach((epochs, name) => {
    const epoch = until([...epochs.keys()], at), net = nets.get(name);
    if (net && !hidden(net) && (where.net || [name]).includes(name)) found.push({...net, line, epoch, points: points(epochs.get(epoch))});
  });
  add("", frames.get(key), points => points.map(text => cut(text).map(number)));
  for (const line of measures) {
    const {names = [], nets: its} = layers.get(line) || {};
    const x = names.map(layer => places[keyOf(line, layer)] ?? places[layer] ?? +layer.match(/\d+/));
    add(line, its, texts => [x, texts.map(number)]);
  }
  return found;
}

function outline([x, y], panel) {
  const base = panel.y.from, up = value => max(-999, min(base, panel.y(value))).toFixed(1);
  return `M${panel.x(x[0])} ${base}${y.map((value, i) => `V${up(value)}H${panel.x(x[i + 1]).toFixed(1)}`).join("")}V${base}`;
}

// Histograms are of one seed of each arm: the one that is lit up, else the first that is shown. A pointer over layers leaves
// the epoch as it is.
function move(panel) {
  const {rows: {measures}, svg, x, y, key, title} = panel, at = [pointed, state.at].find(its => its?.[0] === "epoch")?.[1];
  if (!frames.has(key) && !measures) return;
  const found = shownAt(panel, at ?? Infinity), bars = found[0]?.points[0].length > found[0]?.points[1].length;
  const lines = grouped(found, ({arm, line}) => arm.arm + "\0" + line).map(its => bars ? [its.find(net => net.seed === bright) || its[0]] : its);
  const shown = lines.flat(), moved = lines[0] && (at >= 0 || bars && shown.some(({arm, who}) => arm.nets[0][0] !== who));
  const box = [x.from, y.to, x.to - x.from, y.from - y.to];
  panel.frame ??= svg.insertBefore(draw("svg", {x: x.from, y: y.to, width: box[2], height: box[3], viewBox: box}), panel.over);
  panel.heading ??= find("text", svg).findLast(each => each.textContent === title) || draw("text");
  const one = bars && nets.size > arms.length ? `, seed ${ascending(shown.map(each => each.seed)).join(" and ")}` : "";
  panel.heading.textContent = moved ? title.replace(/, epoch .*|$/, `, epoch ${ascending(shown.map(each => brief(each.epoch))).join(" and ")}${one}`) : title;
  svg.classList.toggle("moved", !!moved);
  panel.frame.replaceChildren(...moved ? lines.flatMap(its => {
    const [{arm: {colour, dash}, points}] = its;
    if (bars) return draw("path", {d: outline(points, panel), class: "band bars", "stroke-dasharray": dash, ...look(colour)});
    const middle = spread(its.map(({points: [at, values]}) => new Map(at.map((place, i) => [place, values[i]]))));
    return bundle(middle, x, y, colour, dash);
  }) : []);
}

function player() {
  const stops = epochsOf([...frames.values(), ...[...layers.values()].map(each => each.nets)].flatMap(nets => [...nets.values()])), last = stops.length - 1, [slider] = find("input", bar);
  if (last < 1) return;
  const go = i => change({at: ["epoch", stops[i]]}), still = matchMedia("(prefers-reduced-motion)"), button = slider.previousElementSibling;
  let timer = 0;
  const play = () => {
    const next = () => go((+slider.value + 1) % (last + 1));
    if (timer) timer = clearInterval(timer);
    else if (still.matches) next();
    else timer = setInterval(next, 200);
    [button.textContent, button.ariaLabel] = timer ? ["❚❚", "pause"] : ["▶", "play"];
  };
  Object.assign(slider, {max: last, value: last, oninput: () => go(slider.value)}).parentElement.hidden = false;
  button.onclick = play;
  hooks.push(() => {
    slider.value = (placeIn(stops) + last + 1) % (last + 1); // the last one without a cursor at an epoch
    slider.ariaValueText = `epoch ${brief(stops[slider.value])}`;
  });
  addEventListener("keydown", event => {
    if (event.key !== " " || event.target.closest("button,input,select,a,summary,pre")) return;
    event.preventDefault();
    play();
  });
}

const digits = value => isFinite(value) ? value.toPrecision(4) : "–";

const STEPS = {ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [0, 0]};
const rowsOf = rows => node("table", {}, ...rows.map((cells, i) => node("tr", {}, ...cells.map((cell, j) => node(i && j ? "td" : "th", {}, cell)))));

// One map: a pixel for each layer and epoch; the page's style stretches it and places marks and numbers.
function heat(title, {names, epochs, back, cells, low, high, stops}, pick) {
  const strip = pixels(1, 256, pen => {
    pen.fillStyle = pen.createLinearGradient(0, 256, 0, 0);
    stops.forEach((stop, i) => pen.fillStyle.addColorStop(i / (stops.length - 1), stop));
    pen.fillRect(0, 0, 1, 256);
  });
  const map = pixels(epochs.length, names.length, pen => cells.forEach((row, i) => row.forEach((value, j) => {
    if (isFinite(value)) pen.drawImage(strip, 0, Math.round(255 * (high - value) / (high - low || 1)), 1, 1, j, names.length - 1 - i, 1, 1);
  })));
  const ticks = (name, list, most) => node("div", {class: name}, ...list.flatMap((each, i) => i % Math.ceil(list.length / most) ? [] : [node("span", {style: `--i:${i}`}, each)]));
  const mark = node("i"), line = node("b");
  let at = [0, epochs.length - 1];
  const put = (steps, enter) => {
    const [i, j] = at = [names, epochs].map((all, k) => max(0, min(all.length - 1, steps[k] | 0)));
    mark.style = `--i:${i};--j:${j}`;
    if (enter) pick(i, j);
    else say(`${names[i]}, epoch ${epochs[j]}: ${digits(back(cells[i][j]))}`);
  };
  const grid = node("div", {class: "cells", ...reached(`${title}: layers by epochs. Arrow keys read cells, Enter shows all seeds.`),
    click: ({offsetX, offsetY}) => put([(1 - offsetY / map.clientHeight) * names.length, offsetX / map.clientWidth * epochs.length], true),
    keydown: event => {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      put(step.map((each, k) => each + at[k]), event.key === "Enter");
    }}, map, line, mark);
  const listing = node("div", {class: "scroll", tabindex: 0}), table = node("details", {toggle: () => listing.replaceChildren(rowsOf([["layer", ...epochs], ...cells.map((row, i) => [names[i], ...row.map(value => digits(back(value)))])]))},
    node("summary", {}, "table"), listing);
  const box = node("div", {class: "map", style: `--n:${names.length};--m:${epochs.length}`}, node("h3", {}, title), ticks("layers", names.map((name, i) => /\d[._-]/.test(names) ? i + 1 : +name.slice(5)), 10),
    grid, strip, ticks("shades", [low, (low + high) / 2, high].map(each => back(each).toPrecision(3)), 3), ticks("epochs", epochs.map(brief), 6), table);
  return {box, show() { line.style = `--j:${placeIn(epochs)}`; }};
}

let mapped = [];
function paint(measure, box, behind) {
  const {names, nets: its} = layers.get(measure), epochs = epochsOf(its.values());
  const kept = Map.groupBy([...nets.values()].filter(net => its.has(net.who) && !hidden(net)), net => net.arm), text = (who, i, epoch) => its.get(who).get(epoch)?.[i];
  const grids = [...kept].map(([arm, own]) => [arm, names.map((_, i) => epochs.map(epoch => mean(own.map(({who}) => number(text(who, i, epoch))))))]);
  const ends = cells => { const all = ascending(cells.flat(2).filter(isFinite)); return [all[0] ?? 0, all.at(-1) ?? 0]; };
  const [least, most] = ends(grids.map(([, cells]) => cells)), log = least > 0 && most > 20 * least;
  const there = log ? log10 : value => value, back = log ? value => 10 ** value : value => value;
  const map = (title, cells, low, high, stops, arm) => heat(title, {names, epochs, back, cells, low, high, stops}, (i, j) => {
    change({at: ["epoch", epochs[j]]});
    const rows = [...kept].flatMap(([each, own]) => !arm || each === arm ? own : []).map(({who}) => [who, text(who, i, epochs[j]) ?? "–"]);
    behind.replaceChildren(node("p", {}, `${keyOf(measure, names[i])}, epoch ${epochs[j]}`), rowsOf([["net", "value"], ...rows]));
  });
  const placed = grids.map(([arm, cells]) => [arm, cells.map(row => row.map(there))]), chosen = [state.a, state.b].map(name => placed.find(([arm]) => arm.arm === name));
  mapped = placed.map(([arm, cells]) => map(arm.arm + (kept.get(arm).length > 1 ? `, mean of ${kept.get(arm).length} seeds` : ""), cells, there(least), there(most), ["#405", "#448", "#278", "#2a8", "#7d5", "#fe2"], arm));
  const [one, other] = chosen.every(Boolean) ? chosen : [placed[1], placed[0]];
  if (one) {
    const cells = one[1].map((row, i) => row.map((value, j) => value - other[1][i][j])), far = max(...ends(cells).map(abs)) || 1;
    mapped.push(map(`${one[0].arm} ${log ? "over" : "−"} ${other[0].arm}`, cells, -far, far, ["#26a", "#9cd", "#fff", "#fa8", "#b12"]));
  }
  box.replaceChildren(...mapped.map(each => each.box));
  behind.replaceChildren();
}

function maps() {
  if (!layers.size) return;
  const select = node("select", {change: () => change({map: select.value}, true)}, ...[...layers.keys()].map(value => node("option", {value}, value)));
  const box = node("div", {class: "maps"}), behind = node("div", {class: "scroll", tabindex: 0, "aria-live": "polite"});
  atlas.prepend(node("label", {}, "measure ", select), box, behind);
  let painted = "";
  hooks.push(() => {
    select.value = layers.has(state.map) ? state.map : select.options[0].value;
    if (painted !== chosen) paint(select.value, box, behind);
    painted = chosen;
    mapped.forEach(each => each.show());
  });
}

if (panels.size) {
  bar.hidden = false;
  restore();
  panels.forEach(open);
  requestAnimationFrame(() => setTimeout(gather)); // after the first picture
  write();
  reveal();
}
})();
