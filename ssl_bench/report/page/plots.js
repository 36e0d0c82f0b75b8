// A metric over each key that varies, and parallel coordinates.

const MOST_LINES = 14, MOST_AXES = 6;
const otherKeys = (key, runs) => independent([key, ...report.shown.filter((each) => each !== "seed")], runs).filter((each) => each !== key);

function axes(runs) {
  const names = [...report.keys].sort((a, b) => report.shown.includes(b) - report.shown.includes(a));
  const numeric = names.filter((key) => key !== "seed" && !key.endsWith(".seed") && runs.every((run) => isNumber(valueOf(run, key)) || valueOf(run, key) === undefined));
  const found = independent(numeric, runs);
  return found.length ? found : independent(report.shown.filter((key) => key !== "seed"), runs);
}

function plotSection() {
  const name = metric(), runs = kept.filter((run) => isNumber(run.metrics[name]));
  const all = axes(runs), only = all.includes(view.axis) ? [view.axis] : all.slice(0, MOST_AXES);
  if (!name || !only.length) return fill(byId("plots"));
  const candidates = independent(report.shown.filter((key) => key !== "seed"), runs);
  const panels = only.map((axis) => [axis, chosenLines(axis, runs)]);
  const same = panels.length > 0 && new Set(panels.map(([, by]) => by.join())).size === 1;
  fill(byId("plots"),
    el("h2", {}, `${unit(name)} over what varies`),
    el("div", { class: "row" },
      choice("Axis", "axis", [["", "each"], ...all.map((key) => [key, key])], view.axis),
      choice("Lines", "by", [["", "automatic"], ...candidates.map((key) => [list([key]), key]), ["none", "one line"]], view.by)),
    same ? legend(lineNames(runs, panels[0][1])) : null,
    el("div", { class: "panels" }, panels.map(([axis, by]) => panel(name, axis, by, runs, !same)), parallel(name, runs)));
}

// The keys that lines stand for: the chosen one, or all others that vary, or the first of them if that were too many.
function chosenLines(axis, runs) {
  if (view.by === "none") return [];
  if (view.by) return names(view.by);
  const others = otherKeys(axis, runs);
  return grouped(others, runs).length <= MOST_LINES ? others : others.slice(0, 1);
}

const lineNames = (runs, by) => (by.length ? grouped(by, runs).map(([values]) => values.map((value, i) => `${by[i]}=${text(value)}`).join(" ")) : []);

function panel(name, axis, by, runs, ownLegend) {
  const having = runs.filter((run) => valueOf(run, axis) !== undefined && valueOf(run, axis) !== null);
  const rest = otherKeys(axis, runs).filter((key) => !by.includes(key));
  const lines = grouped(by, runs), labels = lineNames(runs, by);
  const make = () => ({
    layout: layout(axisOf(axis, having.map((run) => valueOf(run, axis))), { title: unit(name) }),
    traces: lines.map(([, members], index) => {
      const points = grouped([axis], members.filter((run) => having.includes(run)));
      const found = points.map(([, its]) => statistics(its.map((run) => scaled(name, run.metrics[name]))));
      const look = style(index);
      return {
        type: "scatter", mode: "lines+markers", name: plain(labels[index] ?? name),
        x: points.map(([[value]]) => (isNumber(value) ? value : plain(value))), y: found.map((each) => each.mean),
        error_y: { type: "data", array: found.map((each) => each.std ?? 0), visible: true, thickness: 1.2, width: 3 },
        line: { color: look.colour, dash: look.dash, width: 2 }, marker: { color: look.colour, symbol: look.symbol, size: 8 },
        text: points.map(([[value]], i) => `${plain(labels[index] ?? "")}<br>${plain(axis)}=${plain(value)}<br>${number(found[i].mean)}${found[i].std === null ? "" : ` \u00b1 ${number(found[i].std)}`} (${found[i].n} runs)`),
        hovertemplate: "%{text}<extra></extra>",
      };
    }),
  });
  return el("div", { class: "panel" }, el("h3", {}, axis),
    chart(`${name} over ${axis}, ${lines.length} lines; the table of groups has the numbers`, make),
    ownLegend ? legend(labels) : null,
    el("p", { class: "soft" }, `Mean over the runs of a point; bars: \u00b1 one standard deviation.${rest.length ? ` The runs of a point differ in ${rest.join(", ")}.` : ""}`));
}

// A line for each run through the values of the keys that vary, coloured by the metric.
function parallel(name, runs) {
  const keys = independent([...report.shown.filter((key) => key !== "seed"), ...axes(runs)], runs).slice(0, 7);
  if (keys.length < 2 || runs.length < 3) return null;
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
    const colour = (t) => mixed(dark() ? 0.25 + 0.75 * t : 0.9 * t);
    const notes = keys.flatMap((key, i) => places[i].ticks.map((value) => ({ x: i, y: places[i].place.get(value), text: plain(value), showarrow: false, xanchor: i === keys.length - 1 ? "right" : "left", xshift: i === keys.length - 1 ? -6 : 6, yshift: 8, font: { size: 11 } })));
    return {
      layout: layout(
        { title: "", tickmode: "array", tickvals: [...keys.keys(), keys.length], ticktext: [...keys.map((key) => plain(key.split(".").at(-1))), plain(unit(name))], range: [-0.15, keys.length + 0.35], showgrid: true, fixedrange: true },
        { title: "", range: [-0.06, 1.12], showticklabels: false, showgrid: false, zeroline: false, ticks: "", fixedrange: true },
        { annotations: [...notes, ...[[0, low], [1, high]].map(([y, value]) => ({ x: keys.length, y, text: shown(name, value), showarrow: false, xanchor: "right", xshift: -6, yshift: 8, font: { size: 11 } }))] }),
      traces: bins.map((members, bin) => ({
        type: "scatter", mode: "lines", line: { color: colour((bin + 0.5) / 12), width: runs.length > 200 ? 1 : 1.8, shape: "spline", smoothing: 0.4 }, opacity: runs.length > 200 ? 0.45 : 0.85,
        x: members.flatMap(() => [...keys.keys(), keys.length, null]), y: members.flatMap((run) => [...places.map((place) => place.at(run)), share(run), null]),
        text: members.flatMap((run) => Array(keys.length + 2).fill(`${plain(run.label || run.id)}<br>${plain(name)} ${shown(name, run.metrics[name])}`)), hovertemplate: "%{text}<extra></extra>",
      })),
    };
  };
  return el("div", { class: "panel" }, el("h3", {}, "All settings together"), chart(`Parallel coordinates of ${runs.length} runs, coloured by ${name}`, make),
    el("p", { class: "soft" }, `A line for each run: dark is low, bright is high ${name}.`));
}

// A colour of the cividis scale, which grows brighter for every kind of colour vision.
function mixed(share) {
  const next = Math.max(1, CIVIDIS.findIndex(([place]) => place >= share));
  const [[a, from], [b, to]] = [CIVIDIS[next - 1], CIVIDIS[next]];
  const part = (word, i) => parseInt(word.slice(1 + 2 * i, 3 + 2 * i), 16);
  const t = (share - a) / (b - a);
  return `rgb(${[0, 1, 2].map((i) => Math.round(part(from, i) + t * (part(to, i) - part(from, i)))).join(",")})`;
}
