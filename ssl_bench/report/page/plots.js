// A metric over each setting that varies, and parallel coordinates.

const MOST_LINES = 8, MOST_AXES = 4, MOST_PANELS = 12; // of a plot, of the settings that have plots, of the plots of one
const plotted = (runs) => independent(main.filter((key) => key !== "seed"), runs);
const missing = (value) => value === undefined || value === null || value === "";

// The settings with numbers, else all that vary.
function axes(runs) {
  const numeric = (key) => runs.every((run) => isNumber(valueOf(run, key)) || missing(valueOf(run, key)));
  const several = (key) => new Set(runs.map((run) => valueOf(run, key)).filter(isNumber)).size > 1;
  const found = [main, settings].map((keys) => independent(keys.filter((key) => !/(^|\.)seed$/.test(key) && numeric(key) && several(key)), runs));
  return found.find((keys) => keys.length) ?? plotted(runs);
}

function plotSection() {
  const name = metric(), runs = kept.filter((run) => isNumber(run.metrics[name]));
  const all = axes(runs), chosen = all.includes(view.axis) ? [view.axis] : all.slice(0, MOST_AXES);
  const only = chosen.length ? chosen : plotted(runs).slice(0, 1);
  if (!name || !only.length) return fill(byId("plots"));
  const candidates = plotted(runs);
  fill(byId("plots"),
    el("h2", {}, `${unit(name)} over what varies`),
    el("div", { class: "row" },
      choice("Axis", "axis", [["", "each"], ...all.map((key) => [key, key])], view.axis),
      choice("Lines", "by", [["", "automatic"], ...candidates.map((key) => [list([key]), key]), ["none", "one line"]], view.by),
      choice("A plot for each", "facet", [["", "automatic"], ...candidates.map((key) => [key, key]), ["none", "setting of the axis"]], view.facet)),
    only.map((axis) => smallMultiples(name, axis, runs.filter((run) => !missing(valueOf(run, axis))))),
    el("p", { class: "soft" }, "Mean over the runs of a point; bars: \u00b1 one standard deviation."),
    parallel(name, runs));
}

// The plots over one setting, with the same lines and the same height: one for each value of another setting, which is
// the data set if that varies.
function smallMultiples(name, axis, runs) {
  const others = independent([axis, ...plotted(runs)], runs).filter((key) => key !== axis);
  const automatic = others.includes("dataset") ? "dataset" : "none";
  const facet = others.includes(view.facet) || view.facet === "none" ? view.facet : automatic;
  const left = others.filter((key) => key !== facet), by = chosenLines(left, runs);
  const lines = grouped(by, runs), labels = lines.map(([values]) => values.map((value, i) => `${by[i]}=${text(value)}`).join(" "));
  const rest = left.filter((key) => !by.includes(key));
  const parts = grouped(facet === "none" ? [] : [facet], runs), drawn = lines.slice(0, MOST_LINES);
  const notes = [
    lines.length > MOST_LINES ? `${MOST_LINES} of ${lines.length} lines; the filter selects others.` : "",
    parts.length > MOST_PANELS ? `${MOST_PANELS} of ${parts.length} plots; the filter selects others.` : "",
    rest.length ? `The runs of a point differ in ${rest.join(", ")}.` : "",
  ].filter(Boolean).join(" ");
  const range = parts.length > 1 ? { range: spread(drawn.flatMap(([, members]) => members.map((run) => scaled(name, run.metrics[name])))) } : {};
  return el("div", { class: "multiples" },
    el("h3", {}, axis, by.length ? el("span", { class: "soft" }, `: a line for each ${by.join(", ")}`) : null),
    by.length ? legend(labels.slice(0, MOST_LINES)) : null,
    el("div", { class: "panels" }, parts.slice(0, MOST_PANELS).map(([[value], members]) => panel(name, axis, drawn.map(([, its]) => its.filter((run) => members.includes(run))), labels, value === undefined ? null : `${facet}=${text(value)}`, range))),
    notes ? el("p", { class: "soft" }, notes) : null);
}

// The settings that lines stand for: the chosen one, or as many of the others as give few lines.
function chosenLines(others, runs) {
  if (view.by === "none") return [];
  if (view.by && others.includes(names(view.by)[0])) return names(view.by);
  const by = [];
  for (const key of others) if (grouped([...by, key], runs).length <= MOST_LINES) by.push(key);
  return by;
}

function spread(values) {
  const low = Math.min(...values), high = Math.max(...values), space = 0.06 * (high - low || 1);
  return [low - space, high + space];
}

function panel(name, axis, lines, labels, title, range) {
  const runs = lines.flat();
  const make = () => ({
    layout: layout(axisOf(axis, runs.map((run) => valueOf(run, axis))), { title: unit(name), ...range }),
    traces: lines.flatMap((members, index) => {
      if (!members.length) return [];
      const points = grouped([axis], members);
      const found = points.map(([, its]) => statistics(its.map((run) => scaled(name, run.metrics[name]))));
      const look = style(index);
      return [{
        type: "scatter", mode: "lines+markers", name: plain(labels[index] ?? name),
        x: points.map(([[value]]) => (isNumber(value) ? value : plain(value))), y: found.map((each) => each.mean),
        error_y: { type: "data", array: found.map((each) => each.std ?? 0), visible: true, thickness: 1.2, width: 3 },
        line: { color: look.colour, dash: look.dash, width: 2 }, marker: { color: look.colour, symbol: look.symbol, size: 8 },
        text: points.map(([[value]], i) => `${plain(labels[index] ?? "")}<br>${plain(axis)}=${plain(value)}<br>${number(found[i].mean)}${found[i].std === null ? "" : ` \u00b1 ${number(found[i].std)}`} (${counted(found[i].n, "run")})`),
        hovertemplate: "%{text}<extra></extra>",
      }];
    }),
  });
  return el("div", { class: "panel" }, title ? el("h4", {}, title) : null,
    chart(`${name} over ${axis}${title ? `, ${title}` : ""}, ${counted(lines.length, "line")}; the table of groups has the numbers`, make));
}

// A line for each run through the values of the keys that vary, coloured by the metric.
function parallel(name, runs) {
  const keys = plotted(runs).slice(0, innerWidth < 700 ? 2 : 6), all = plotted(runs).length;
  if (all < 3 || runs.length < 3) return null; // the plots above show two
  const numbers = runs.map((run) => run.metrics[name]), low = Math.min(...numbers), high = Math.max(...numbers);
  const share = (run) => (high > low ? (run.metrics[name] - low) / (high - low) : 0.5);
  const places = keys.map((key) => {
    const values = order(key, runs).map((run) => valueOf(run, key)), different = [...new Set(values)];
    const at = new Map(different.map((value, i) => [value, different.length > 1 ? i / (different.length - 1) : 0.5]));
    const spread = 0.05 * Math.min(1, 12 / different.length); // runs with the same value lie beside each other
    return { ticks: different.length <= FEW_VALUES ? different : [different[0], different.at(-1)], at: (run) => at.get(valueOf(run, key)) + spread * (share(run) - 0.5), place: at };
  });
  const bins = Array.from({ length: 12 }, () => []);
  for (const run of runs) bins[Math.min(11, Math.floor(12 * share(run)))].push(run);
  const make = () => {
    const most = Math.min(18, Math.floor((printing ? 690 : innerWidth) / (keys.length + 1) / 8)); // letters beside each other
    const colour = (t) => mixed(dark() ? 0.25 + 0.75 * t : 0.9 * t);
    const notes = keys.flatMap((key, i) => places[i].ticks.map((value) => ({ x: i, y: places[i].place.get(value), text: plain(shortened(text(value), most)), showarrow: false, xanchor: "left", xshift: 6, yshift: 8, font: { size: 11 } })));
    return {
      layout: layout(
        { title: "", tickmode: "array", tickvals: [...keys.keys(), keys.length], ticktext: [...keys.map((key) => plain(shortened(key.split(".").at(-1), most))), plain(unit(name))], tickangle: 0, range: [-0.15, keys.length + 0.35], showgrid: true, fixedrange: true },
        { title: "", range: [-0.06, 1.12], showticklabels: false, showgrid: false, zeroline: false, ticks: "", fixedrange: true },
        { annotations: [...notes, ...[[0, low], [1, high]].map(([y, value]) => ({ x: keys.length, y, text: shown(name, value), showarrow: false, xanchor: "right", xshift: -6, yshift: 8, font: { size: 11 } }))] }),
      traces: bins.map((members, bin) => ({
        type: "scatter", mode: "lines", line: { color: colour((bin + 0.5) / 12), width: runs.length > 200 ? 1 : 1.8, shape: "spline", smoothing: 0.4 }, opacity: runs.length > 200 ? 0.45 : 0.85,
        x: members.flatMap(() => [...keys.keys(), keys.length, null]), y: members.flatMap((run) => [...places.map((place) => place.at(run)), share(run), null]),
        text: members.flatMap((run) => Array(keys.length + 2).fill(`${plain(run.label || run.id)}<br>${plain(name)} ${shown(name, run.metrics[name])}`)), hovertemplate: "%{text}<extra></extra>",
      })),
    };
  };
  return el("div", { class: "multiples" }, el("h3", {}, "All settings together"), chart(`Parallel coordinates of ${counted(runs.length, "run")}, coloured by ${name}`, make, "plot wide"),
    el("p", { class: "soft" }, `A line for each run: dark is low, bright is high ${name}.${keys.length < all ? ` ${keys.length} of ${all} settings.` : ""}`));
}

// A colour of the cividis scale, which grows brighter for every kind of colour vision.
function mixed(share) {
  const next = Math.max(1, CIVIDIS.findIndex(([place]) => place >= share));
  const [[a, from], [b, to]] = [CIVIDIS[next - 1], CIVIDIS[next]];
  const part = (word, i) => parseInt(word.slice(1 + 2 * i, 3 + 2 * i), 16);
  const t = (share - a) / (b - a);
  return `rgb(${[0, 1, 2].map((i) => Math.round(part(from, i) + t * (part(to, i) - part(from, i)))).join(",")})`;
}
