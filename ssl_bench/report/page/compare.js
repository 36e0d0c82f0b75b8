// Two runs side by side: settings that differ, metrics, curves and pictures.

function comparison() {
  const section = byId("compare"), runs = names(view.compare).map(byName);
  if (report.runs.length < 2) return fill(section);
  const options = [["", "choose a run"], ...report.runs.map((run) => [run.id, `${run.id.split("/").at(-1)}  ${run.label}`])];
  const select = (place) => {
    const picked = el("select", { "data-focus": `compare ${place}`, id: `compare-${place}`, onchange: () => {
      const both = [0, 1].map((i) => byId(`compare-${i}`).value);
      set({ compare: both.some(Boolean) ? list(both.map((id) => id || "-")) : "" });
    } });
    const chosen = names(view.compare)[place];
    picked.append(...options.map(([value, label]) => option(value, label, chosen)));
    return el("label", {}, place ? "and" : "Compare", picked);
  };
  const [a, b] = runs;
  fill(section, el("h2", {}, "Two runs"), el("div", { class: "row" }, select(0), select(1)),
    a && b ? bothRuns(a, b) : el("p", { class: "soft" }, "Choose two runs here, or select two in the table."));
}

function bothRuns(a, b) {
  const differing = report.keys.filter((key) => text(valueOf(a, key)) !== text(valueOf(b, key)));
  const measured = allMetrics.filter((name) => name in a.metrics || name in b.metrics);
  const head = (first) => el("thead", {}, el("tr", {}, el("th", { scope: "col" }, first), [a, b].map((run) => el("th", { scope: "col" }, link(run, run.id.split("/").at(-1)))), first === "metric" ? el("th", { scope: "col", class: "number" }, "difference") : null));
  const settings = differing.map((key) => el("tr", {}, el("th", { scope: "row" }, key), [a, b].map((run) => el("td", {}, text(valueOf(run, key))))));
  const numbers = measured.map((name) => {
    const [x, y] = [a.metrics[name], b.metrics[name]], difference = isNumber(x) && isNumber(y) ? y - x : NaN;
    return el("tr", {}, el("th", { scope: "row" }, unit(name)), [x, y].map((value) => el("td", {}, shown(name, value))),
      el("td", { class: "number" }, isNumber(difference) ? (difference > 0 ? "+" : "") + shown(name, difference) : ""));
  });
  const wanted = curveNames([a, b]).slice(0, 6);
  return [
    el("div", { class: "pair" },
      el("div", {}, el("h3", {}, `${counted(differing.length, "setting")} differ${differing.length === 1 ? "s" : ""}`), scrolled("settings that differ", el("table", { id: "difference", class: "wrap" }, head("setting"), el("tbody", {}, settings)))),
      el("div", {}, el("h3", {}, "Metrics"), scrolled("metrics of both runs", el("table", {}, head("metric"), el("tbody", {}, numbers))))),
    wanted.length ? curvePanels([a, b], wanted) : null,
    a.pictures.length || b.pictures.length ? el("div", { class: "pair" }, [a, b].map((run) => el("div", {}, el("h3", {}, run.label || run.id), pictures(run)))) : null,
  ];
}

function pictures(run) {
  if (!run.pictures.length) return el("p", { class: "soft" }, "No pictures besides the curves.");
  return el("div", { class: "pictures" }, run.pictures.map((each) => el("figure", {},
    each.src ? el("img", { src: each.src, alt: each.name, loading: "lazy" }) : el("a", { href: each.href, target: "_blank" }, "open the picture (too large for this file)"),
    el("figcaption", {}, each.name))));
}
