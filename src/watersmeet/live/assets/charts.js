// Charts over the seconds of a run. All have the same axis of time and show the same moment.
const LEFT = 78;
const view = { zoom: null, charts: [], palette: {}, onZoom: () => {} };

const paint = (name) => (view.palette[name] ??= colour(name) || name);
const stepped = uPlot.paths.stepped({ align: 1 }); // a sample holds until the next one
const since = uPlot.paths.stepped({ align: -1 }); // a sample speaks of the time since the one before

/** The seconds that are shown. */
function span(samples) {
  if (view.zoom) return view.zoom;
  const last = samples.length ? samples[samples.length - 1].t : 0;
  return [0, last > 0 ? last : 1];
}

/** Stretches of time of which something holds; a sample holds until the next one. */
function stretches(samples, holds) {
  const found = [];
  for (let i = 0; i + 1 < samples.length; i++) {
    if (!holds(samples[i], samples[i + 1])) continue;
    const last = found[found.length - 1];
    if (last && last[1] === samples[i].t) last[1] = samples[i + 1].t;
    else found.push([samples[i].t, samples[i + 1].t]);
  }
  return found;
}

/** From when to when no row came, of any input or of one, as far as it can be seen. */
function silences(samples, input, kind = "join") {
  // What a micro-batch brings is known when it is over: only one without rows is a silence.
  if (kind === "batches") samples = samples.filter((sample, i) => !i || i === samples.length - 1 || sample.batch?.[0] !== samples[i - 1].batch?.[0]);
  const length = samples.length ? samples[samples.length - 1].t : 0;
  // Without a sample for long, and no silence told, the join was busy: whether rows came meanwhile it did not see.
  const seen = Math.max(0.35, (4 * length) / samples.length);
  const least = Math.max(0.1, length / 150);
  const same = (a, b) => (input == null ? a.in.every((n, i) => n === b.in[i]) : a.in[input] === b.in[input]);
  const goesOn = (phase) => phase !== "clean-up" && phase !== "done" && phase !== "closed";
  const over = (a, b) => kind !== "batches" ? a.silent || (input != null && b.t - a.t < seen) : a.batch?.[0] !== b.batch?.[0];
  return stretches(samples, (a, b) => same(a, b) && goesOn(a.phase) && over(a, b)).filter(([from, to]) => to - from >= least);
}

/** From when to when a join had nothing to do but to wait. */
function waiting(samples) {
  return stretches(samples, (a) => a.phase === "arriving" && a.silent);
}

/** Paint stretches of time across a chart. */
function bands(u, spans, name, top = 0, height = 1, alpha = 1) {
  const { left, width, top: y, height: h } = u.bbox;
  u.ctx.save();
  u.ctx.globalAlpha = alpha;
  u.ctx.fillStyle = paint(name);
  for (const [from, to] of spans) {
    const a = Math.max(left, u.valToPos(from, "x", true));
    const b = Math.min(left + width, u.valToPos(to, "x", true));
    if (b > a) u.ctx.fillRect(a, y + top * h, Math.max(1, b - a), height * h);
  }
  u.ctx.restore();
}

class Chart {
  /**
   * @param {object} spec  id, title, note, series: [{label, colour, dash, fill, of: sample => value}], height, wide,
   *   format of values, axis of numbers on the axis, log, free (the axis need not begin at zero), under: paints below the lines
   */
  constructor(spec) {
    this.spec = spec;
    this.samples = [];
    this.legend = el("div", { class: "legend" });
    this.plot = el("div", { class: "plot" });
    this.root = el("div", { class: spec.wide ? "chart wide" : "chart", id: `chart-${spec.id}`, role: "group", "aria-label": spec.title },
      el("h2", {}, spec.title), el("span", {}, spec.note ?? ""), this.legend, this.plot);
    this.values = spec.series.map((series) => {
      const value = el("b");
      const shown = el("span", { title: series.label }, swatch(series.colour, series.dash, series.filled), el("em", {}, series.label), value);
      this.legend.append(shown);
      return value;
    });
    for (const extra of spec.keys ?? []) this.legend.append(el("span", {}, swatch(extra.colour, [], true), el("em", {}, extra.label)));
  }

  /** Draw for the first time; the element is in the page by now. */
  mount() {
    const { spec } = this;
    const width = Math.max(120, this.plot.clientWidth);
    const font = "11.5px system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif";
    const axis = { stroke: () => paint("soft"), font, grid: { stroke: () => paint("grid"), width: 1 }, ticks: { show: false }, gap: 6 };
    this.u = new uPlot({
      width, height: spec.height ?? 190, padding: [8, 20, 0, 0], legend: { show: false },
      scales: { x: { time: false, range: () => span(this.samples) }, y: this.scale() },
      axes: [
        { ...axis, size: 26, space: 64, values: (u, marks, _, __, step) => marks.map((mark) => moment(mark, step)) },
        { ...axis, size: LEFT, space: 34, values: (u, marks) => (spec.axisOf ? spec.axisOf(marks) : marks.map((mark) => (mark == null ? "" : (spec.axis ?? short)(mark)))), ...spec.y },
      ],
      series: [{}, ...spec.series.map((series) => ({
        stroke: () => paint(series.colour), width: series.width ?? 1.8, dash: series.dash?.length ? series.dash : undefined,
        fill: series.fill ? () => paint(series.fill) : undefined, paths: series.since ? since : stepped, points: { show: false }, spanGaps: true,
      }))],
      bands: spec.gap ? [{ series: spec.gap, fill: () => paint("gap") }] : [],
      cursor: {
        sync: { key: "run", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } }, drag: { x: true, y: false, setScale: false }, y: false,
        points: { size: 7, show: spec.series.length > 0 }, bind: { dblclick: () => () => (view.onZoom(null), null) },
      },
      hooks: {
        drawClear: [(u) => spec.under?.(u, this.samples)],
        draw: [(u) => spec.over?.(u, this.samples)],
        setCursor: [() => this.tell()],
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          view.onZoom([from, to]);
        }],
      },
    }, this.data(), this.plot);
    this.watcher = new ResizeObserver(() => {
      const now = this.plot.clientWidth;
      if (this.u && now > 0 && now !== this.u.width) this.u.setSize({ width: now, height: this.spec.height ?? 190 });
    });
    this.watcher.observe(this.plot);
    this.tell();
  }

  scale() {
    const { spec } = this;
    if (spec.log) return { distr: 3, range: (u, least, most) => (most > 0 ? [10 ** Math.floor(Math.log10(least)), 10 ** Math.ceil(Math.log10(most * 1.01))] : [0.001, 1]) };
    if (spec.fixed) return { range: () => spec.fixed };
    if (spec.free) return { range: (u, least, most) => (least == null ? [0, 1] : [least - (most - least || 1) * 0.05, most + (most - least || 1) * 0.05]) };
    return { range: (u, least, most) => [0, Math.max(most ?? 0, spec.most?.(this.samples) ?? 0) * 1.07 || 1] };
  }

  data() {
    const { samples, spec } = this;
    const of = (series) => samples.map((sample, i) => { const value = series.of(sample, i); return spec.log && !(value > 0) ? null : value ?? null; });
    const columns = spec.series.map(of);
    return [samples.map((sample) => sample.t), ...(columns.length ? columns : [])];
  }

  update(samples) {
    this.samples = this.spec.expand ? this.spec.expand(samples) : samples;
    if (!this.u) return;
    this.u.setData(this.data());
    this.tell();
  }

  /** The values under the cursor, or the newest ones. */
  tell() {
    if (!this.u) return;
    const place = this.u.cursor.idx ?? this.samples.length - 1;
    this.spec.series.forEach((series, i) => {
      const value = this.u.data[i + 1]?.[place];
      this.values[i].textContent = value == null ? "–" : (this.spec.format ?? count)(value);
    });
    const at = this.u.cursor.idx == null ? "" : `at ${seconds(this.samples[place]?.t)}`;
    const note = this.root.querySelector("h2 + span");
    if (note) note.textContent = at || (this.spec.note ?? "");
  }

  close() {
    this.watcher?.disconnect();
    this.u?.destroy();
    this.u = null;
    this.root.remove();
  }
}

/** Binary search: how many of a sorted list are at most this. */
function upTo(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= value) low = middle + 1; else high = middle; }
  return low;
}

const PHASES = { arriving: ["arriving", "arriving"], reactive: ["reactive", "working in a silence"], silent: ["reactive", "silent"], "clean-up": ["cleanup", "clean-up after the last row"] };
const isPhase = (name) => (sample) => sample.phase === name;

function resultsChart(run) {
  const [times, counts] = run.possible ?? [[], []];
  const possible = (sample) => { const seen = upTo(times, sample.t); return seen ? counts[seen - 1] : 0; };
  /** Samples may be far apart, while what is possible grows: a moment for each of its steps, too. */
  const expand = (samples) => {
    const last = samples.length ? samples[samples.length - 1].t : 0;
    const extra = times.filter((t, i) => t > 0 && t < last && i % Math.ceil(times.length / 500) === 0);
    const found = [];
    let next = 0;
    samples.forEach((sample, i) => {
      found.push(sample);
      const until = samples[i + 1]?.t ?? sample.t;
      while (next < extra.length && extra[next] <= sample.t) next++;
      for (; next < extra.length && extra[next] < until; next++) found.push({ ...sample, t: extra[next] });
    });
    return found;
  };
  const series = [{ label: "found", colour: "result", fill: "result-fill", width: 2.4, of: (sample) => sample.out }];
  if (run.possible) series.unshift({ label: "possible so far", colour: "possible", dash: [5, 4], of: possible });
  return new Chart({
    id: "results", title: "Results over time", wide: true, height: 270, series, expand: run.possible ? expand : null, gap: run.possible ? [1, 2] : null, note: run.possible ? "the gap is what a join with all memory would have found" : "",
    keys: [["reactive", "reactive"], ["cleanup", "clean-up"]].filter(([, phase]) => run.samples.some((s) => s.phase === phase)).map(([name, phase]) => ({ colour: name, label: PHASES[phase][1] })),
    under: (u, samples) => {
      bands(u, stretches(samples, isPhase("reactive")), "reactive", 0, 1, 0.42);
      bands(u, stretches(samples, isPhase("clean-up")), "cleanup", 0, 1, 0.5);
    },
  });
}

/** What an event counts for: several words of joins are one lane. */
function laneOf(event) {
  if (event === "runs settled") return null;
  for (const [start, lane] of [["settled", "settled"], ["flushed", "flushed"], ["dumps", "flushed"], ["scans", "scanned"], ["expired", "expired"]]) if (event.startsWith(start)) return lane;
  if (event === "merged" || event.endsWith(" joined")) return "merged";
  return event;
}

function eventLanes(samples) {
  const lanes = new Map();
  const add = (lane, t, n) => { if (!lanes.has(lane)) lanes.set(lane, []); const marks = lanes.get(lane); const last = marks[marks.length - 1]; if (last && last[0] === t) last[1] += n; else marks.push([t, n]); };
  for (let i = 0; i < samples.length; i++) {
    if (i && samples[i].batch && samples[i].batch[0] !== samples[i - 1].batch?.[0]) add("batches", samples[i].t, 1);
    const before = i ? samples[i - 1].events ?? {} : {};
    for (const [event, n] of Object.entries(samples[i].events ?? {})) {
      const lane = laneOf(event), more = n - (before[event] ?? 0);
      if (lane && more > 0) add(lane, samples[i].t, more);
    }
  }
  const order = ["settled", "flushed", "merged", "scanned", "expired"];
  const rank = ([lane]) => (order.includes(lane) ? order.indexOf(lane) : order.length);
  return [...lanes.entries()].sort((a, b) => rank(a) - rank(b)).slice(0, 5);
}

/** Lanes: each input's arrivals, the phases, and what the join did. */
function lanesChart(run) {
  const events = eventLanes(run.samples);
  const phased = run.kind === "join"; // of micro-batches there is no telling in which phase they are
  const lanes = [...run.names, ...(phased ? ["phase"] : []), ...events.map(([lane]) => lane)];
  const n = lanes.length;
  const at = (i) => (i + 0.5) / n;
  const clip = (text, u) => { u.ctx.save(); let cut = text; while (cut.length > 2 && u.ctx.measureText(cut).width > (LEFT - 18) * uPlot.pxRatio) cut = cut.slice(0, -1); u.ctx.restore(); return cut === text ? text : `${cut.slice(0, -1)}…`; };
  return new Chart({
    id: "lanes", title: "What happened when", wide: true, height: 40 + 24 * n, series: [], fixed: [0, n],
    note: "a gap is a silence of an input; a mark is one or more of its kind",
    keys: phased ? [...Object.entries(PHASES).filter(([phase]) => run.samples.some((s) => s.phase === phase)).map(([, [name, label]]) => ({ colour: name, label })), { colour: "other", label: "waiting for rows" }] : [],
    y: { grid: { show: false }, splits: () => [], size: LEFT },
    over: (u, samples) => {
      const { left, top, width, height } = u.bbox, ratio = uPlot.pxRatio, lane = height / n;
      run.names.forEach((_, i) => {
        const quiet = silences(samples, i, run.kind);
        const [from, to] = [samples[0]?.t ?? 0, run.inputEnds(samples, i)];
        let begin = from;
        const busy = [];
        for (const [a, b] of quiet) { if (a >= to) break; if (a > begin) busy.push([begin, a]); begin = b; }
        if (to > begin) busy.push([begin, to]);
        bands(u, busy, inputColour(i), at(i) - 0.24 / n, 0.48 / n, 0.85);
      });
      if (phased) {
        const lane = (spans, name) => bands(u, spans, name, at(run.names.length) - 0.36 / n, 0.72 / n);
        for (const [phase, [name]] of Object.entries(PHASES)) lane(stretches(samples, isPhase(phase)), name);
        lane(waiting(samples), "other");
      }
      u.ctx.save();
      u.ctx.font = `${11.5 * ratio}px system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif`;
      u.ctx.textAlign = "right";
      u.ctx.textBaseline = "middle";
      lanes.forEach((label, i) => {
        const y = top + at(i) * height;
        u.ctx.fillStyle = paint("soft");
        u.ctx.fillText(clip(label, u), left - 8 * ratio, y);
        u.ctx.fillStyle = paint("grid");
        u.ctx.fillRect(left, Math.round(top + ((i + 1) / n) * height), width, ratio);
      });
      u.ctx.beginPath();
      u.ctx.rect(left, top, width, height);
      u.ctx.clip();
      eventLanes(samples).forEach(([name, marks]) => {
        const i = lanes.indexOf(name);
        if (i < 0) return;
        u.ctx.fillStyle = paint("result");
        for (const [t, many] of marks) {
          u.ctx.globalAlpha = Math.min(1, 0.55 + 0.15 * Math.log2(many));
          const x = u.valToPos(t, "x", true), tall = lane * Math.min(0.72, 0.4 + 0.08 * Math.log2(many));
          u.ctx.fillRect(Math.round(x - ratio * 0.8), top + at(i) * height - tall / 2, Math.max(1, ratio * 1.6), tall);
        }
      });
      u.ctx.restore();
    },
  });
}
