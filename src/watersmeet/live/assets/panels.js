// Which charts and figures a run has: only those of which there is something to show.
const has = (field) => (run) => run.samples.some((sample) => sample[field] != null);
const of = (field, i) => (sample) => (i == null ? sample[field] : sample[field]?.[i]);
const perInput = (run, field) => run.names.map((name, i) => ({ label: name, colour: inputColour(i), dash: DASHES[i % DASHES.length], of: of(field, i) }));

/** All charts, in their order: [id, whether a run has it, how it is made]. */
const CHARTS = [
  ["results", (run) => run.names.length && run.kind !== "state", resultsChart],
  ["lanes", (run) => run.names.length && run.kind !== "state", lanesChart],
  ["grid", (run) => run.extras.groups, gridPanel],
  ["inputs", (run) => run.names.length && run.now?.rows_in.length, (run) => new Chart({
    id: "inputs", title: run.kind === "state" ? "Rows in the state" : "Rows in", note: run.kind === "state" ? "" : "shaded: no row of any input came", series: perInput(run, "in"),
    under: (u, samples) => { if (run.kind !== "state") bands(u, silences(samples, null, run.kind), "silence"); },
  })],
  ["memory", (run) => run.now?.budget > 0, (run) => new Chart({
    id: "memory", title: "Memory", note: run.kind === "batches" ? "of the fullest task" : "", format: bytes, axis: bytes, y: { incrs: BYTE_STEPS },
    series: [{ label: "held", colour: "memory", fill: "memory-fill", of: of("memory") }, { label: "allowed", colour: "limit", dash: [6, 4], width: 1.6, of: () => run.now?.budget }],
  })],
  ["batch", (run) => has("batch")(run) && run.kind !== "state", (run) => new Chart({
    id: "batch", title: "Time of a micro-batch", format: seconds, axis: seconds,
    series: [{ label: "Spark and the join", colour: "possible", fill: "gap", filled: true, since: true, of: (s) => s.batch?.[1] ?? 0 }, { label: "the join's slowest task", colour: "memory", fill: "memory-fill", filled: true, since: true, of: (s) => s.batch?.[2] ?? 0 }],
  })],
  ["disk", (run) => has("spilled")(run) || has("disk")(run), (run) => new Chart({
    id: "disk", title: "Disk", format: bytes, axis: bytes, y: { incrs: BYTE_STEPS },
    series: [{ label: run.kind === "join" ? "on disk now" : "state", colour: "disk", fill: "disk-fill", of: (s) => s.disk ?? 0 }, ...(has("spilled")(run) ? [{ label: "written so far", colour: "disk", dash: [5, 4], width: 1.6, of: (s) => s.spilled ?? 0 }] : [])],
  })],
  ["waits", (run) => run.samples.some((s) => s.waits?.[1] > 0), (run) => new Chart({
    id: "waits", title: run.now?.lookup ? "Delay of answers" : "How late pairs came", note: "after their later row; of the whole run so far", format: seconds, axis: seconds, log: true,
    series: [{ label: "99 in 100 within", colour: "in1", dash: [6, 3], of: of("waits", 1) }, { label: "half within", colour: "in0", of: of("waits", 0) }],
  })],
  ["owing", (run) => run.samples.some((s) => s.owing > 0), () => new Chart({
    id: "owing", title: "Rows that owe", note: "they have yet to meet what is on disk", series: [{ label: "rows", colour: "in4", fill: "gap", of: of("owing") }],
  })],
  ["remembered", has("remembered"), () => new Chart({
    id: "remembered", title: "Rows in the windows", series: [{ label: "remembered", colour: "memory", fill: "memory-fill", of: of("remembered") }],
  })],
  ["late", (run) => run.samples.some((s) => s.late?.some(Boolean)), (run) => new Chart({ id: "late", title: "Late rows", series: perInput(run, "late") })],
  ["reached", (run) => run.samples.some((s) => s.reached?.some((at) => at != null)), (run) => new Chart({
    id: "reached", title: "How far the inputs have come", note: "the newest time in their rows", free: true, series: perInput(run, "reached"),
    format: (at) => told(at, run.now?.dated), axisOf: (marks) => toldMarks(marks, run.now?.dated), y: { incrs: run.now?.dated ? SPANS : undefined },
  })],
  ["lookups", has("answered"), () => new Chart({
    id: "lookups", title: "Rows looked up", series: [
      { label: "answered", colour: "result", fill: "result-fill", of: of("answered") }, { label: "from memory", colour: "in2", dash: [7, 3], of: of("hits") }, { label: "without a partner", colour: "in1", dash: [2, 3], of: of("misses") }],
  })],
  ["probing", (run) => run.now?.probing, probingPanel],
];

/** Seconds between marks of times that rows tell. */
const SPANS = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000, 31536000];
const BYTE_STEPS = Array.from({ length: 50 }, (_, i) => 2 ** i);

/** The graph of a join of several inputs: how often rows match along each condition, and in which order they are looked up. */
function probingPanel(run) {
  const body = el("div", { class: "graph" });
  const root = el("div", { class: "chart wide", id: "chart-probing", role: "group", "aria-label": "Order of look-ups" },
    el("h2", {}, "Order of look-ups"), el("span", {}, "a number at an input: so many of its rows match one of the other end"), body);
  let drawn = "";
  return {
    root, spec: { id: "probing" }, mount() {}, close() { root.remove(); },
    update() {
      const { probing } = run.now ?? {};
      const text = JSON.stringify(probing);
      if (!probing || text === drawn) return;
      drawn = text;
      body.replaceChildren(graph(run.names, probing), orders(run.names, probing));
    },
  };
}

function graph(names, probing) {
  const n = names.length, wide = 460, high = n > 3 ? 280 : n > 2 ? 210 : 110, turn = n === 3 ? 0 : 0.5;
  const angle = (i) => (2 * Math.PI * (i - turn)) / n;
  const places = names.map((_, i) => (n === 2 ? [wide * (0.2 + 0.6 * i), high * 0.6] : [wide / 2 + wide * 0.37 * Math.sin(angle(i)), high * (n === 3 ? 0.56 : 0.5) - high * 0.33 * Math.cos(angle(i))]));
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": probing.conditions.join(", ") });
  const word = (x, y, text, fill, weight = 400) => {
    const label = svg("text", { x, y, "font-size": 12.5, "font-weight": weight, "text-anchor": "middle", "dominant-baseline": "central" });
    label.style.fill = `var(--${fill})`;
    label.textContent = text;
    return label;
  };
  const tag = (x, y, text) => {
    const half = 4 + 3.8 * text.length;
    const paper = svg("rect", { x: x - half, y: y - 9, width: 2 * half, height: 18, rx: 4 });
    paper.style.fill = "var(--card)";
    return [paper, word(x, y, text, "soft")];
  };
  const labels = [];
  probing.ends.forEach(([a, b], i) => {
    const [x1, y1] = places[a], [x2, y2] = places[b], [toA, toB] = probing.matches[i];
    const line = svg("line", { x1, y1, x2, y2, "stroke-width": Math.max(1, Math.min(7, 1.5 + Math.log2(1 + Math.max(toA, toB)))) });
    line.style.stroke = "var(--possible)";
    const title = svg("title");
    title.textContent = probing.conditions[i];
    line.append(title);
    drawing.append(line);
    const along = (part) => [x1 + (x2 - x1) * part, y1 + (y2 - y1) * part];
    labels.push(...tag(...along(0.28), matches(toA)), ...tag(...along(0.72), matches(toB)));
  });
  drawing.append(...labels);
  names.forEach((name, i) => {
    const [x, y] = places[i];
    const dot = svg("circle", { cx: x, cy: y, r: 8 });
    dot.style.fill = `var(--${inputColour(i)})`;
    drawing.append(dot, word(x, y + (y > high / 2 && n > 2 ? 20 : -20), name.length > 24 ? `${name.slice(0, 23)}…` : name, "ink", 600));
  });
  return drawing;
}

const matches = (n) => (n >= 100 ? short(n) : n >= 1 ? n.toFixed(1) : n.toPrecision(2));

function orders(names, probing) {
  const chip = (i) => el("span", { class: "chip", title: names[i], style: { borderLeftColor: `var(--${inputColour(i)})` } }, names[i]);
  return el("div", { class: "orders" }, ...probing.orders.map((order, driver) =>
    el("div", { class: "order" }, chip(driver), ...order.flatMap((i) => ["→", chip(i)]))));
}

// --- figures at a glance ---

function tile(id, title, ...children) {
  return el("div", { class: "tile", id: `tile-${id}` }, el("h2", {}, title), ...children);
}
const big = (text) => el("div", { class: "big", title: text }, text);
const more = (text) => el("div", { class: "more", title: text }, text);

/** Results a second, over the last two seconds of samples. */
function rate(samples, field = "out") {
  const last = samples[samples.length - 1];
  if (!last) return null;
  let i = samples.length - 1;
  while (i > 0 && last.t - samples[i].t < 2) i--;
  const time = last.t - samples[i].t;
  return time > 0 ? (last[field] - samples[i][field]) / time : null;
}

function tiles(run) {
  const { now, samples } = run;
  if (!now) return [tile("out", "Results", big("–"), more("nothing has begun"))];
  const found = [];
  if (run.kind === "state") return stateTiles(run);
  const over = run.ended;
  const pace = over ? (now.elapsed ? now.rows_out / now.elapsed : null) : rate(samples);
  found.push(tile("out", "Results", big(count(now.rows_out)), more(pace == null ? "" : `${short(Math.round(pace))} a second${over ? " over the run" : ""}`)));
  found.push(tile("first", "First result after", big(seconds(now.first_result_after)), more(`${seconds(now.elapsed)} ${over ? "in all" : "so far"}`)));
  const inputs = el("div", { class: "split" }, ...now.names.map((name, i) =>
    el("div", {}, swatch(inputColour(i), DASHES[i % DASHES.length]), el("span", { class: "name", title: name }, name), el("span", { class: "count" }, count(now.rows_in[i])))));
  const rows = tile("in", "Rows in", inputs);
  rows.classList.add("broad");
  found.push(rows);
  if (now.budget) {
    const part = (n) => `${Math.min(100, (100 * n) / now.budget)}%`;
    found.push(tile("memory", over ? "Memory at most" : "Memory", big(bytes(over ? now.peak : now.memory)),
      el("div", { class: "bar" }, el("i", { style: { width: part(over ? now.peak : now.memory) } }), el("b", { style: { left: `calc(${part(now.peak)} - 2px)` } })),
      more(`of ${bytes(now.budget)}${over ? "" : `, peak ${bytes(now.peak)}`}`)));
  }
  if (run.kind !== "join" && now.on_disk) found.push(tile("disk", "State on disk", big(bytes(now.on_disk)), more(now.spilled ? `${bytes(now.spilled)} did not fit into memory` : "")));
  else if (now.spilled || now.on_disk) found.push(tile("disk", "Written to disk", big(bytes(now.spilled || now.on_disk)), more(over ? "nothing is left of it" : `${bytes(now.on_disk)} there now`)));
  const waits = now.lookup ? [now.lookup.delay_p50, now.lookup.delay_p99] : now.lateness ? [now.lateness.p50, now.lateness.p99] : now.delays;
  if (waits?.[1] > 0) found.push(tile("waits", now.lookup ? "99 in 100 answered within" : "99 in 100 waited at most", big(seconds(waits[1])), more(`half ${seconds(waits[0])}${now.lateness?.owing ? `; ${short(now.lateness.owing)} rows owe` : ""}`)));
  if (now.late) found.push(tile("late", "Late rows", big(count(now.late.reduce((a, b) => a + b, 0))), more(`${count(now.window_rows)} remembered`)));
  if (now.lookup) found.push(tile("lookup", "Found in memory", big(share(now.lookup.hits, now.lookup.answered)), more(`${count(now.lookup.misses)} without a partner; ${bytes(now.lookup.bytes_read)} read`)));
  if (now.batch) found.push(tile("batch", `Batch ${now.batch.number}`, big(seconds(now.batch.seconds)), more(`${seconds(now.batch.join_seconds)} of it the join`)));
  return found;
}

/** Of a state directory, which knows nothing of results. */
function stateTiles({ now, extras }) {
  const groups = extras.groups ?? [];
  const slots = new Set(groups.map((group) => group.slot).filter((slot) => slot != null));
  return [
    tile("batch", "Last batch", big(count(now.batch?.number)), more(`the join took ${seconds(now.batch?.join_seconds)}`)),
    tile("disk", "State", big(bytes(now.on_disk)), more(`${count(groups.length)} groups${slots.size ? ` in ${slots.size} slots` : ""}`)),
    ...(now.rows_in.length ? [tile("in", "Rows in the state", big(count(now.rows_in.reduce((a, b) => a + b, 0))), more(now.rows_in.map(short).join(" + ")))] : []),
  ];
}

/** Every figure of the newest sample, for those who would rather read. */
function figures(run) {
  const rows = [];
  const add = (name, value) => {
    if (value == null || value === "" || (Array.isArray(value) && !value.length)) return;
    if (Array.isArray(value) && value.every((each) => Array.isArray(each) && each.length === 2 && typeof each[0] === "string")) value.forEach(([key, each]) => add(`${name}: ${key}`, each));
    else if (typeof value === "object" && !Array.isArray(value)) Object.entries(value).forEach(([key, each]) => add(`${name}: ${key}`, each));
    else rows.push(el("tr", {}, el("th", { scope: "row" }, name.replaceAll("_", " ")), el("td", {}, Array.isArray(value) ? value.map(figure).join(" · ") : figure(value))));
  };
  for (const [name, value] of Object.entries(run.now ?? {})) add(name, value);
  return rows;
}

const figure = (value) => (typeof value === "number" ? (Number.isInteger(value) ? count(value) : String(+value.toPrecision(6))) : String(value));
