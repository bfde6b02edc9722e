// Numbers and elements. All text goes through textContent: no name or value is ever taken for markup.
const whole = new Intl.NumberFormat("en");

/** A count, in full. */
const count = (n) => (n == null ? "–" : whole.format(Math.round(n)));

/** A count for an axis: 12k, 3.4M. */
function short(n) {
  const size = Math.abs(n);
  for (const [unit, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit) return `${+(n / unit).toPrecision(3)}${sign}`;
  return `${+n.toFixed(size < 10 ? 2 : 0)}`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes in the units that memory= takes. */
function bytes(n) {
  if (n == null) return "–";
  let place = 0;
  while (Math.abs(n) >= 1024 && place < UNITS.length - 1) { n /= 1024; place++; }
  return `${+n.toFixed(n >= 100 ? 0 : 1)} ${UNITS[place]}`;
}

/** A length of time. */
function seconds(s) {
  if (s == null) return "–";
  if (s === 0) return "0 s";
  if (s < 0.001) return `${+(s * 1e6).toFixed(0)} µs`;
  if (s < 1) return `${+(s * 1e3).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 60) return `${+s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** A moment on the axis of time. */
function moment(s, step = 1) {
  if (s >= 3600) return `${Math.floor(s / 3600)}:${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} h`;
  if (s >= 120 || (s >= 60 && step >= 10)) return `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")} min`;
  return `${+s.toFixed(Number.isInteger(step) ? 0 : Number.isInteger(+(10 * step).toFixed(6)) ? 1 : 2)} s`;
}

/** A time that rows tell. */
const told = (at, dated) => (at == null ? "–" : dated ? new Date(at * 1000).toISOString().replace("T", " ").replace(/\.000Z$|Z$/, "") : whole.format(at));

/** Times that rows tell, on an axis. */
function toldMarks(marks, dated) {
  if (!dated) return marks.map(short);
  const span = marks[marks.length - 1] - marks[0];
  return marks.map((mark) => { const text = told(mark, true); return span > 86400 ? text.slice(5, 16) : text.slice(11, span > 600 ? 16 : 19); });
}

const share = (part, all) => (all ? `${((100 * part) / all).toFixed(part && part < all / 10 ? 1 : 0)}%` : "–");

/** An element with attributes and children, which are elements or text. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(made.style, value);
    else if (value != null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);

/** A colour of the theme at hand. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const inputColour = (i) => `in${i % 6}`;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4], [12, 4]];

/** A piece of the line that stands for a series. */
function swatch(name, dash = [], filled = false) {
  const drawing = svg("svg", { class: "swatch", viewBox: "0 0 18 10" });
  const shape = filled
    ? svg("rect", { x: 0, y: 0, width: 18, height: 10, rx: 2 })
    : svg("line", { x1: 0, y1: 5, x2: 18, y2: 5, "stroke-width": 2.4, "stroke-dasharray": dash.join(" ") });
  shape.style[filled ? "fill" : "stroke"] = `var(--${name})`;
  drawing.append(shape);
  return drawing;
}
