// The table of runs, and of groups of runs.

function runSection() {
  const groups = names(view.group).filter((key) => settings.includes(key));
  const seeds = main.filter((key) => key !== "seed"), averaged = main.includes("seed") && seeds.length > 0;
  const controls = groups.length
    ? [menu("Group by", "group", settings, groups), button("No groups", "ungroup", () => set({ group: "" }))]
    : [
      menu("Group by", "group", settings, groups),
      menu("Columns", "columns", [...metrics, ...settings, "epoch", "speed", "seconds", "reason"], columns()),
      averaged && button("Mean over seeds", "seeds", () => set({ group: list(seeds) })),
      selection(),
    ];
  fill(byId("runs"), el("h2", {}, groups.length ? "Groups of runs" : "Runs"), row(controls),
    groups.length ? groupTable(groups) : runTable());
}

function selection() {
  const count = chosenRuns().length;
  const says = count ? `${count} selected` : "Select runs to see their curves and what differs between them.";
  return [el("span", { class: "soft" }, says), count > 0 && button("Select none", "to-none", () => set({ select: "" }))];
}

function columns() {
  if (view.columns) return names(view.columns);
  return [...usualMetrics(4), ...main, "epoch", "speed", "seconds"];
}

// The head of a column, which sorts by it: a metric with the best first, and in reverse when it is pressed again.
function heading(name, label, isNumeric) {
  const sorted = view.sort.replace(/^-/, "") === name, down = view.sort.startsWith("-");
  const next = sorted ? (down ? name : `-${name}`) : bestFirst(name);
  const direction = sorted && (down ? "descending" : "ascending");
  const sort = { scope: "col", class: isNumeric && "number", "aria-sort": direction };
  const arrow = sorted ? (down ? " \u25be" : " \u25b4") : "";
  return el("th", sort, button(label + arrow, `sort ${name}`, () => set({ sort: next })));
}

function entry(run, name) {
  const value = valueOf(run, name);
  if (name === "seconds") return duration(value);
  if (name === "epoch") return number(value) + (run.state !== "finished" && run.epochs ? ` of ${number(run.epochs)}` : "");
  if (run.not_finite.includes(name)) return "not finite";
  return metrics.includes(name) ? shown(name, value) : text(value);
}

function runTable() {
  if (!kept.length) return el("p", { class: "empty" }, byId("filter-says").textContent);
  const sorted = view.sort ? order(view.sort, kept) : kept, selected = names(view.select);
  const most = view.rows === "all" ? Infinity : Number(view.rows) || 200;
  const its = columns().map((name) => ({
    name, kind: kept.some((run) => isNumber(valueOf(run, name))) ? "number" : "",
    top: metrics.includes(name) ? best(kept, name) : null,
    label: FIELD_NAMES[name] ?? (metrics.includes(name) ? unit(name) : name),
  }));
  const heads = [
    el("th", { class: "pick", scope: "col" }, el("span", { class: "soft", "aria-label": "selected" }, "\u2713")),
    heading("run", "run"), heading("state", "state"), ...its.map(({ name, label, kind }) => heading(name, label, kind)),
  ];
  const rows = sorted.slice(0, most).map((run) => el("tr", { "aria-selected": selected.includes(run.id) && "true" },
    el("td", { class: "pick" }, checkbox(run, selected)),
    el("td", {}, link(run, run.id.split("/").at(-1)), warned(run)),
    el("td", {}, state(run.state)),
    its.map(({ name, kind, top }) => el("td", {
      class: `${kind}${top === run ? " best" : ""}`, title: name === "reason" && run.reason,
    }, entry(run, name)))));
  return [
    table("runs", heads, rows, { id: "run-table" }),
    sorted.length > most && el("p", {}, `${most} of ${sorted.length} runs. `,
      button("Show all", "all", () => set({ rows: "all" }))),
    commonSettings(),
  ];
}

function checkbox(run, selected) {
  const change = () => {
    const others = selected.filter((id) => id !== run.id);
    set({ select: list(others.length < selected.length ? others : [...selected, run.id]) });
  };
  return el("input", {
    type: "checkbox", "aria-label": `Select ${run.label || run.id}`, "data-focus": `select ${run.id}`,
    checked: selected.includes(run.id), onchange: change,
  });
}

function warned(run) {
  const sign = { class: "warned", role: "img", "aria-label": "warnings", title: run.warnings.join("\n") };
  return run.warnings.length > 0 && el("span", sign, " \u26a0");
}

// Mean and deviation of the metrics of each group; the best mean is marked.
function groupTable(keys) {
  const wanted = [...new Set([metric(), ...usualMetrics(3)])].filter(Boolean);
  const rows = grouped(keys, once(kept)).map(([values, runs]) => ({
    values, runs, found: wanted.map((name) => statistics(runs.map((run) => run.metrics[name]).filter(isNumber))),
  }));
  const tops = wanted.map((name, i) => {
    const better = about(name).better, means = rows.map((each) => better * each.found[i].mean).filter(isNumber);
    return better && better * Math.max(...means);
  });
  sortGroups(rows, keys, wanted);
  const heads = [
    ...keys.map((key) => heading(key, key)), el("th", { scope: "col", class: "number" }, "runs"),
    ...wanted.map((name) => heading(name, `${unit(name)}: mean \u00b1 std (n)`, true)),
  ];
  return table("groups", heads, rows.map(({ values, runs, found }) => [
    ...values.map(text), numeric(runs.length),
    ...found.map((each, i) =>
      numeric(each.n ? meanText(each, (value) => shown(wanted[i], value)) : "", each.mean === tops[i] ? "best" : "")),
  ]), { id: "group-table" });
}

function sortGroups(rows, keys, wanted) {
  const name = view.sort.replace(/^-/, ""), sign = view.sort.startsWith("-") ? -1 : 1, place = wanted.indexOf(name);
  const mean = ({ found }) => sign * (found[place].mean || 0);
  if (place >= 0) rows.sort((a, b) => mean(a) - mean(b));
  else if (keys.includes(name) && sign < 0) rows.reverse();
}

function commonSettings() {
  const one = scope.find((run) => run.folder) ?? scope[0];
  const constant = report.keys.filter((key) => !settings.includes(key)).map((key) => [key, valueOf(one, key)]);
  const shared = [...constant.filter(([, value]) => value !== null), ...Object.entries(report.common)];
  const summary = el("summary", { "data-focus": "common" }, `${counted(shared.length, "setting")} that all runs share`);
  const lines = shared.map(([key, value]) => `${key}=${text(value)}`).sort();
  return el("details", {}, summary, el("pre", {}, lines.join("\n")));
}
