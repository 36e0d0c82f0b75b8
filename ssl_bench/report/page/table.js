// The table of runs, and of groups of runs.

const chosenRuns = () => names(view.select).map(byName).filter(Boolean);

function columns() {
  if (view.columns) return view.columns === "none" ? [] : names(view.columns);
  const usual = metrics.filter((name) => name.endsWith("/top1") && !/_(init|raw)\/|projection/.test(name));
  return [...(usual.length ? usual : metrics).slice(0, 4), ...main, "epoch", "speed", "seconds"];
}

function runTable() {
  const options = [...metrics, ...settings, "epoch", "speed", "seconds", "reason"];
  const groups = names(view.group).filter((key) => settings.includes(key));
  fill(byId("runs"),
    el("h2", {}, groups.length ? "Groups of runs" : "Runs"),
    el("div", { class: "row" },
      menu("Group by", "group", settings, groups),
      groups.length ? el("button", { type: "button", "data-focus": "ungroup", onclick: () => set({ group: "" }) }, "No groups") : null,
      groups.length ? null : menu("Columns", "columns", options, columns()),
      main.includes("seed") && main.length > 1 && !groups.length
        ? el("button", { type: "button", "data-focus": "seeds", onclick: () => set({ group: list(main.filter((key) => key !== "seed")) }) }, "Mean over seeds") : null,
      groups.length ? null : el("span", { class: "soft", id: "selected" }, selectionText()),
      groups.length ? null : el("button", { type: "button", id: "to-compare", disabled: chosenRuns().length !== 2, "data-focus": "to-compare", onclick: () => {
        set({ compare: list(chosenRuns().map((run) => run.id)) });
        byId("compare").scrollIntoView();
      } }, "Compare the two"),
      groups.length ? null : el("button", { type: "button", id: "to-none", disabled: !chosenRuns().length, "data-focus": "to-none", onclick: () => set({ select: "" }) }, "Select none")),
    groups.length ? groupTable(groups) : table());
}

const selectionText = () => (chosenRuns().length ? `${chosenRuns().length} selected` : "Select runs to see their curves; two to compare them.");

function heading(name, label, numeric) {
  const sorted = view.sort.replace(/^-/, "") === name;
  const next = !sorted ? (metrics.includes(name) ? `-${name}` : name) : view.sort.startsWith("-") ? name : `-${name}`;
  const arrow = sorted ? (view.sort.startsWith("-") ? " \u25be" : " \u25b4") : "";
  return el("th", { scope: "col", class: numeric ? "number" : "", "aria-sort": sorted ? (view.sort.startsWith("-") ? "descending" : "ascending") : null },
    el("button", { type: "button", "data-focus": `sort ${name}`, onclick: () => set({ sort: next }) }, label + arrow));
}

function entry(run, name) {
  const value = valueOf(run, name);
  if (name === "seconds") return duration(value);
  if (name === "epoch") return isNumber(value) ? number(value) + (run.state !== "done" && run.epochs ? ` of ${number(run.epochs)}` : "") : "";
  if (run.not_finite.includes(name)) return "not finite";
  return metrics.includes(name) ? shown(name, value) : text(value);
}

function table() {
  const shownColumns = columns(), sorted = view.sort ? order(view.sort, kept) : kept;
  const numeric = shownColumns.map((name) => kept.some((run) => isNumber(valueOf(run, name))));
  const top = Object.fromEntries(shownColumns.filter((name) => metrics.includes(name)).map((name) => [name, best(kept, name)?.id]));
  const most = view.rows === "all" ? Infinity : Number(view.rows) || 200;
  const body = el("tbody", {}, sorted.slice(0, most).map((run) => {
    const box = el("input", { type: "checkbox", "aria-label": `Select ${run.label || run.id}`, "data-focus": `select ${run.id}`, checked: names(view.select).includes(run.id) });
    box.addEventListener("change", () => {
      const others = names(view.select).filter((id) => id !== run.id);
      set({ select: list(box.checked ? [...others, run.id] : others) });
    });
    return el("tr", { "aria-selected": box.hasAttribute("checked") ? "true" : null },
      el("td", { class: "pick" }, box),
      el("td", {}, link(run, run.id.split("/").at(-1)), warned(run)),
      el("td", {}, state(run.state)),
      shownColumns.map((name, i) => el("td", { class: `${numeric[i] ? "number" : ""}${top[name] === run.id ? " best" : ""}`, title: name === "reason" ? run.reason : null }, entry(run, name))));
  }));
  const head = el("tr", {}, el("th", { class: "pick", scope: "col" }, el("span", { class: "soft", "aria-label": "selected" }, "\u2713")),
    heading("run", "run"), heading("state", "state"),
    shownColumns.map((name, i) => heading(name, FIELD_NAMES[name] ?? (metrics.includes(name) ? unit(name) : name), numeric[i])));
  return [
    kept.length ? scrolled("runs", el("table", { id: "run-table" }, el("thead", {}, head), body)) : el("p", { class: "empty" }, byId("filter-says").textContent),
    sorted.length > most ? el("p", {}, `${most} of ${sorted.length} runs. `, el("button", { type: "button", onclick: () => set({ rows: "all" }) }, "Show all")) : null,
    commonSettings(),
  ];
}

const warned = (run) => (run.warnings.length ? el("span", { class: "warned", role: "img", "aria-label": "warnings", title: run.warnings.join("\n") }, " \u26a0") : null);

function scrolled(name, content) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${name}`, "data-scroll": name }, content);
}

// Mean, deviation and standard error of the metrics of each group; the best mean is marked.
function groupTable(keys) {
  const groups = grouped(keys, kept);
  const usual = metrics.filter((name) => name.endsWith("/top1") && !/_(init|raw)\/|projection/.test(name)).slice(0, 3);
  const wanted = [...new Set([metric(), ...usual])].filter(Boolean);
  const rows = groups.map(([values, runs]) => ({ values, runs, found: wanted.map((name) => statistics(runs.map((run) => run.metrics[name]).filter(isNumber))) }));
  const tops = wanted.map((name, i) => (bestIsHigh(name) ? Math.max(...rows.map((row) => row.found[i].mean).filter(isNumber)) : NaN));
  const [sortName, sign] = [view.sort.replace(/^-/, ""), view.sort.startsWith("-") ? -1 : 1];
  if (wanted.includes(sortName)) rows.sort((a, b) => sign * ((a.found[wanted.indexOf(sortName)].mean || 0) - (b.found[wanted.indexOf(sortName)].mean || 0)));
  else if (keys.includes(sortName) && sign < 0) rows.reverse();
  return scrolled("groups", el("table", { id: "group-table" },
    el("thead", {}, el("tr", {}, keys.map((key) => heading(key, key)), el("th", { scope: "col", class: "number" }, "runs"),
      wanted.map((name) => [heading(name, `${unit(name)}: mean \u00b1 std (n)`, true), el("th", { scope: "col", class: "number" }, "standard error")]))),
    el("tbody", {}, rows.map(({ values, runs, found }) => el("tr", {},
      values.map((value) => el("td", {}, text(value))), el("td", { class: "number" }, String(runs.length)),
      found.map((each, i) => [
        el("td", { class: `number${each.mean === tops[i] ? " best" : ""}` }, each.n ? meanText(wanted[i], each) : ""),
        el("td", { class: "number" }, each.error === null ? "" : shown(wanted[i], each.error))]))))));
}

function commonSettings() {
  const constant = report.keys.filter((key) => !settings.includes(key) && scope.length).map((key) => [key, valueOf(scope.find((run) => run.folder) ?? scope[0], key)]).filter(([, value]) => value !== null);
  const shared = [...constant, ...Object.entries(report.common)];
  return el("details", {}, el("summary", { "data-focus": "common" }, `${counted(shared.length, "setting")} that all runs share`),
    el("pre", {}, shared.map(([name, value]) => `${name}=${text(value)}`).sort().join("\n")));
}
