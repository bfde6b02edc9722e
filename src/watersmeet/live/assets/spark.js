// What only joins on Spark have: groups of keys in slots, how much each has to do, what moves, and hot keys.
const lightness = (part) => (document.documentElement.dataset.theme === "dark" ? 22 + 46 * part : 94 - 54 * part);
const shade = (part) => `hsl(${colour("cell").replace(",", " ").replace("%", "%")} ${lightness(part)}%)`;

function gridPanel(run) {
  const key = el("div", { class: "legend" });
  const slots = el("div", { class: "slots" });
  const hot = el("div", { class: "scroll" });
  const root = el("div", { class: "chart wide", id: "chart-grid", role: "group", "aria-label": "Groups of keys and their slots" },
    el("h2", {}, "Groups of keys"), el("span", {}), key, slots, hot);
  return {
    root, spec: { id: "grid" }, mount() {}, close() { root.remove(); },
    update() {
      const { groups, unit, hot: keys = [], batch } = run.extras;
      if (!groups) return;
      const say = unit === "bytes" ? bytes : unit === "seconds" ? seconds : count;
      const most = Math.max(...groups.map((group) => group.load), 1e-9);
      root.querySelector("h2 + span").textContent = batch == null ? "" : `as of batch ${batch}`;
      key.replaceChildren(
        el("span", { class: "scale" }, "0", el("i", { style: { background: `linear-gradient(90deg, ${shade(0)}, ${shade(1)})` } }), `${say(most)} ${run.extras.of ?? ""}`),
        ...(groups.some((group) => group.moved) ? [el("span", {}, el("i", { class: "cell moved", style: { width: "16px", height: "12px" } }), "has just moved")] : []));
      const bySlot = new Map();
      for (const group of groups) bySlot.set(group.slot ?? null, [...(bySlot.get(group.slot ?? null) ?? []), group]);
      slots.replaceChildren(...[...bySlot.entries()].sort((a, b) => (a[0] ?? -1) - (b[0] ?? -1)).map(([slot, all]) => {
        const load = all.reduce((sum, group) => sum + group.load, 0);
        const cells = all.map((group) => {
          const what = `group ${group.number}: ${say(group.load)}${group.moved ? ", has just moved here" : ""}`;
          const part = group.load / most;
          const dark = document.documentElement.dataset.theme === "dark";
          return el("span", { class: group.moved ? "cell moved" : "cell", title: what, "aria-label": what, role: "img", style: { background: shade(part), color: (dark ? part > 0.55 : part < 0.55) ? "#10181c" : "#fff" } }, String(group.number));
        });
        return el("div", { class: "slot" }, el("h3", {}, slot == null ? "all tasks" : `slot ${slot}`, el("span", {}, `${all.length} groups, ${say(load)}`)), el("div", { class: "cells" }, ...cells));
      }));
      hot.replaceChildren(...(keys.length ? [el("table", {},
        el("tr", {}, el("th", {}, "hot key (its hash)"), el("th", { class: "number" }, "spread over"), el("th", {}, "groups")),
        ...keys.map((each) => el("tr", {}, el("td", {}, each.key), el("td", { class: "number" }, count(each.ways)), el("td", {}, each.groups.join(", ")))))] : []));
    },
  };
}
