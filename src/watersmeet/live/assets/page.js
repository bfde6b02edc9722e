// The page itself: what is shown, how news come in, keys and buttons.
const SHELL = document.documentElement.outerHTML;
const recorded = JSON.parse(byId("recorded").textContent);
const runs = new Map();
const state = { active: null, chosen: false, held: false, over: false, newsAt: performance.now(), shown: "", updates: 0 };

class RunView {
  constructor(key) {
    this.key = key;
    this.kept = [];
    this.samples = [];
    this.extras = {};
    this.possible = null;
  }

  take(news) {
    const { kept, tail, start, possible, ...rest } = news;
    Object.assign(this, rest);
    this.kept.length = start;
    for (const sample of kept) this.kept.push(sample);
    this.tail = tail;
    this.samples = [...this.kept, ...tail];
    if (start === 0 && possible) this.possible = possible;
    this.newsAt = performance.now();
  }

  get names() { return this.now?.names ?? []; }

  /** When the last row of an input came, as far as is known. */
  inputEnds(samples, input) {
    let i = samples.length - 1;
    while (i > 0 && samples[i - 1].in[input] === samples[i].in[input]) i--;
    return samples[i]?.t ?? 0;
  }

  get phase() { return this.error ? "failed" : this.now?.phase ?? "not started"; }

  /** For a file: all in one piece. */
  document() {
    const { key, title, began, kind, ended, error, extras, now, samples, possible } = this;
    return { key, title, began, kind, ended, error, extras, now, possible, version: [0, 0], start: 0, kept: samples, tail: [] };
  }
}

function take(news) {
  for (const each of news) {
    if (!runs.has(each.key)) {
      runs.set(each.key, new RunView(each.key));
      if (!state.chosen) state.active = each.key;
    }
    runs.get(each.key).take(each);
  }
  state.newsAt = performance.now();
  state.updates++;
  if (!state.held) drawSoon();
}

// --- drawing ---

/** Once for all news that come between two frames; not at all while nobody sees the page. */
function drawSoon() {
  if (state.due) return;
  state.due = true;
  requestAnimationFrame(() => { state.due = false; draw(); });
}

function draw() {
  const run = runs.get(state.active);
  if (!run) {
    byId("about").textContent = "Waiting for the first join.";
    return;
  }
  drawHead(run);
  byId("tiles").replaceChildren(...evened(tiles(run), "broad"));
  const wanted = CHARTS.filter(([, when]) => when(run));
  const lanes = eventLanes(run.samples).map(([lane]) => lane);
  const phases = [...new Set(run.samples.map((sample) => sample.phase))];
  const shown = JSON.stringify([run.key, wanted.map(([id]) => id), run.names, lanes, phases, !!run.possible, run.now?.budget > 0]);
  if (shown !== state.shown) {
    state.shown = shown;
    view.charts.forEach((chart) => chart.close());
    view.charts = wanted.map(([, , make]) => make(run));
    evened(view.charts.map((chart) => chart.root), "wide");
    byId("charts").replaceChildren(...view.charts.map((chart) => chart.root));
    view.charts.forEach((chart) => { chart.samples = run.samples; chart.mount(); });
  }
  view.charts.forEach((chart) => chart.update(run.samples));
  if (byId("numbers").open) drawNumbers();
}

/** In two columns nothing stands alone: the last of an odd number takes both. */
function evened(elements, name) {
  const single = elements.filter((each) => !each.classList.contains(name));
  if (single.length % 2) single[single.length - 1].classList.add(name);
  return elements;
}

function drawHead(run) {
  byId("title").textContent = run.title;
  document.title = `${run.title} · Watersmeet`;
  const phase = byId("phase");
  phase.textContent = { failed: "failed", closed: "stopped" }[run.phase] ?? run.phase;
  phase.className = `pill ${run.phase.split(" ")[0]}`;
  const { now } = run;
  const about = [now?.algorithm, now?.reason, run.ended ? `ended after ${seconds(now?.elapsed)}` : null, new Date(run.began * 1000).toLocaleString()];
  byId("about").textContent = about.filter(Boolean).join(" · ");
  const tabs = byId("runs");
  tabs.hidden = runs.size < 2;
  if (runs.size > 1) {
    tabs.replaceChildren(...[...runs.values()].map((each) => {
      const tab = el("button", { type: "button", role: "tab", "aria-selected": String(each === run), tabindex: each === run ? "0" : "-1" }, each.title);
      tab.addEventListener("click", () => choose(each.key));
      return tab;
    }));
  }
  byId("whole").hidden = !view.zoom;
  notice(run);
}

function choose(key) {
  const focused = document.activeElement?.getAttribute("role") === "tab";
  state.active = key;
  state.chosen = true;
  view.zoom = null;
  draw();
  if (focused) byId("runs").querySelector('[aria-selected="true"]')?.focus();
}

/** What a user should know beyond the figures. */
function notice(run) {
  const box = byId("notice");
  const quiet = (performance.now() - run.newsAt) / 1000;
  let text = "";
  if (run.error) text = `The join failed: ${run.error}`;
  else if (!recorded && !run.ended && !state.over && run.kind === "join" && quiet > 3 && !byId("link").textContent)
    text = `No news for ${Math.floor(quiet)} s: whoever reads the results holds the join up, or its process sleeps.`;
  box.classList.toggle("bad", Boolean(run.error));
  box.hidden = !text;
  box.textContent = text;
}

function drawNumbers() {
  const run = runs.get(state.active);
  if (run) byId("numbers").querySelector("table").replaceChildren(...figures(run));
}

/** Draw everything anew: the theme has changed. */
function redraw() {
  view.palette = {};
  state.shown = "";
  draw();
}

view.onZoom = (zoom) => {
  view.zoom = zoom;
  byId("whole").hidden = !zoom;
  view.charts.forEach((chart) => chart.u?.setData(chart.u.data));
};

// --- news ---

function tellLink(text) {
  byId("link").textContent = text;
  byId("link").hidden = !text;
  document.body.classList.toggle("stale", Boolean(text) && !state.over);
}

function connect() {
  const source = new EventSource(`events${location.search}`);
  const heard = () => { if (byId("link").textContent) tellLink(""); };
  source.addEventListener("open", heard);
  source.addEventListener("news", (event) => { heard(); take(JSON.parse(event.data)); });
  source.addEventListener("alive", heard);
  source.addEventListener("end", () => {
    source.close();
    state.over = true;
    tellLink("The page is no longer served; what you see stays.");
  });
  source.addEventListener("error", () => {
    if (state.over) return;
    tellLink("Connection lost; trying again …");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { source.close(); if (!state.over) connect(); }, 1500);
  });
}

// --- keys and buttons ---

function hold(on = !state.held) {
  state.held = on;
  byId("hold").setAttribute("aria-pressed", String(on));
  if (!on) draw();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  redraw();
}

function save() {
  const text = JSON.stringify([...runs.values()].map((run) => run.document())).replace(/[<>&]/g, (sign) => `\\u00${sign.charCodeAt(0).toString(16)}`);
  const page = SHELL.replace(/(<script type="application\/json" id="recorded">)[^<]*/, (_, tag) => tag + text);
  const link = el("a", { href: URL.createObjectURL(new Blob([`<!doctype html>\n${page}`], { type: "text/html" })), download: "watersmeet-run.html" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Walk through the samples. */
function walk(step) {
  const samples = runs.get(state.active)?.samples ?? [];
  if (!samples.length) return;
  state.place = Math.max(0, Math.min(samples.length - 1, (state.place ?? samples.length - 1) + step));
  for (const { u } of view.charts) u?.setCursor({ left: u.valToPos(samples[state.place].t, "x"), top: 10 });
}

function letGo() {
  state.place = null;
  for (const chart of view.charts) chart.u?.setCursor({ left: -10, top: -10 });
  view.onZoom(null);
}

const KEYS = {
  t: () => byId("theme").click(), s: save, " ": () => hold(), Escape: letGo,
  ArrowLeft: (event) => walk(event.shiftKey ? -10 : -1), ArrowRight: (event) => walk(event.shiftKey ? 10 : 1),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const tab = event.target.closest?.('[role="tab"]');
  if (tab && event.key.startsWith("Arrow")) {
    const keys = [...runs.keys()], step = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
    choose(keys[(keys.indexOf(state.active) + step + keys.length) % keys.length]);
    event.preventDefault();
    return;
  }
  const act = KEYS[event.key];
  if (!act || (event.key === " " && event.target.closest?.("button, summary, a"))) return;
  event.preventDefault();
  act(event);
});

byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
byId("hold").addEventListener("click", () => hold());
byId("whole").addEventListener("click", letGo);
byId("save").addEventListener("click", save);
byId("numbers").addEventListener("toggle", drawNumbers);

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
document.documentElement.dataset.theme = prefersDark.matches ? "dark" : "light";
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches ? "dark" : "light"));

// For whoever looks from outside: a test, or a user at the console.
window.watersmeet = { runs, state, view, silences };
if (recorded) {
  byId("hold").hidden = true;
  take(recorded);
} else {
  draw();
  connect();
  setInterval(() => { const run = runs.get(state.active); if (run) notice(run); }, 1000);
}
