// A metric over each setting that varies, over another metric, or over two settings.

const MOST_LINES = 8, MOST_AXES = 4, MOST_PANELS = 12; // of a plot, of the section, of the plots of one setting
const plotted = (runs) => independent(main.filter((key) => key !== "seed"), runs);

// The settings with numbers, else all that vary.
function axes(runs) {
  const fits = (values) => values.length > 1 && values.every(isNumber);
  const found = [main, settings].map((keys) =>
    independent(keys.filter((key) => !isSeed(key) && fits(valuesOf(key, runs))), runs));
  return found.find((keys) => keys.length) ?? plotted(runs);
}

function plotSection() {
  const name = metric(), runs = once(kept.filter((run) => isNumber(run.metrics[name])));
  const all = axes(runs), others = metrics.filter((each) => each !== name);
  const drawn = all.length ? all.slice(0, MOST_AXES) : plotted(runs).slice(0, 1);
  if (!name || !(drawn.length || (runs.length > 1 && others.length))) return fill(byId("plots"));
  const axis = [...all, ...others].includes(view.axis) ? view.axis : "", overMetric = others.includes(axis);
  const candidates = plotted(runs).map((key) => [key, key]), same = (key) => [key, key];
  fill(byId("plots"),
    el("h2", {}, `${unit(name)} over ${axis || "what varies"}`),
    row(
      choice("Axis", "axis", [["", "each setting"], ...all.map(same), ...others.map(same)]),
      choice("Lines", "by", [["", "automatic"], ...candidates, ["none", "one line"]]),
      choice("A plot for each", "facet", [["", "automatic"], ...candidates, ["none", "setting of the axis"]]),
      overMetric && choice("Colour", "colour", [["", "of the line"], ...metrics.map(same)])),
    (axis ? [axis] : drawn).map((key) => smallMultiples(name, key, runs.filter((run) => !missing(valueOf(run, key))))),
    !overMetric && soft("A point is the mean of its runs; bars: \u00b1 one standard deviation, pooled over the points of a line."),
    (experiment()?.left_out[name] ?? []).map((sentence) => soft(sentence)),
    heatMaps(name, all, runs));
}

// The plots over one setting or metric, with the same lines and the same height: one for each value of another setting,
// which is the data set if that varies.
function smallMultiples(name, axis, runs) {
  const others = independent([axis, ...plotted(runs)], runs).filter((key) => key !== axis);
  const automatic = others.includes("dataset") ? "dataset" : "none";
  const facet = others.includes(view.facet) || view.facet === "none" ? view.facet : automatic;
  const left = others.filter((key) => key !== facet), by = chosenLines(left, runs);
  const points = grouped([axis, ...by, ...(facet === "none" ? [] : [facet])], runs);
  const rest = metrics.includes(axis) ? [] : left.filter((key) => points.some(([, its]) => differ(key, its)));
  const lines = grouped(by, runs), drawn = lines.slice(0, MOST_LINES);
  const parts = grouped(facet === "none" ? [] : [facet], runs);
  const labels = drawn.map(([values]) => withValues(by, values));
  const numbers = drawn.flatMap(([, its]) => its.map((run) => scaled(name, run.metrics[name])));
  const range = parts.length > 1 ? { range: spread(numbers, about(name).share) } : {};
  const panels = parts.slice(0, MOST_PANELS).map(([values, members]) => {
    const its = drawn.map(([, runs]) => runs.filter((run) => members.includes(run)));
    return panel(name, axis, its, labels, values.length ? withValues([facet], values) : "", range);
  });
  return el("div", { class: "multiples" },
    el("h3", {}, axis, by.length ? el("span", { class: "soft" }, `: a line for each ${by.join(", ")}`) : null),
    by.length ? legend(labels) : null,
    el("div", { class: "panels" }, panels),
    soft([
      tooMany(drawn, lines, "lines"), tooMany(panels, parts, "plots"),
      rest.length ? `The runs behind one point also differ in ${rest.join(", ")}.` : "",
    ].join(" ")));
}

function tooMany(shown, all, word) {
  return shown.length < all.length ? `${shown.length} of ${all.length} ${word}; the filter selects others.` : "";
}

// The settings that lines stand for: the chosen one, or as many of the others as give few lines.
function chosenLines(others, runs) {
  const by = [];
  if (view.by === "none") return by;
  if (others.includes(view.by)) return [view.by];
  for (const key of others) if (grouped([...by, key], runs).length <= MOST_LINES) by.push(key);
  return by;
}

// The range of an axis with some values, which of shares in percent ends within 0 and 100.
function spread(values, share) {
  const low = Math.min(...values), high = Math.max(...values), space = 0.06 * (high - low || 1);
  return share ? [Math.max(0, low - space), Math.min(100, high + space)] : [low - space, high + space];
}

function panel(name, axis, lines, labels, title, range) {
  const make = metrics.includes(axis) ? scatter : means;
  const numbers = lines.flat().map((run) => scaled(axis, valueOf(run, axis)));
  const draw = () => ({
    layout: layout(axisOf(unit(axis), numbers), { ...axisOfMetric(name), ...range }),
    traces: lines.flatMap((runs, index) => (runs.length ? [make(name, axis, runs, index, labels[index])] : [])),
  });
  const over = `${name} over ${axis}${title && `, ${title}`}, ${counted(lines.length, "line")}`;
  return el("div", { class: "panel" }, title && el("h4", {}, title),
    chart(`${over}; the table of groups has the numbers`, draw));
}

// A line through the means of a metric over a setting.
function means(name, axis, runs, index, label) {
  const points = grouped([axis], runs);
  const found = points.map(([, its]) => statistics(its.map((run) => scaled(name, run.metrics[name]))));
  const x = points.map(([[value]]) => (isNumber(value) ? value : plain(value)));
  const says = ([[value]], i) => `${plain(label)}<br>${plain(axis)}=${plain(value)}<br>${meanText(found[i], number)}`;
  const more = { name: plain(label || name), error_y: errorBars(found), text: points.map(says) };
  return line(index, x, found.map(({ mean }) => mean), more);
}

// A point for each run; coloured by a third metric if one is chosen.
function scatter(name, axis, runs, index, label) {
  const colour = metrics.includes(view.colour) ? view.colour : "";
  const values = (key) => runs.map((run) => (isNumber(run.metrics[key]) ? scaled(key, run.metrics[key]) : null));
  const made = line(index, values(axis), values(name), {
    mode: "markers", name: plain(label || name), text: runs.map((run) => plain(run.label || run.id)),
    hovertemplate: `%{text}<br>${plain(unit(axis))} %{x:.4g}<br>${plain(unit(name))} %{y:.4g}<extra></extra>`,
  });
  if (!colour) return made;
  const scale = spread(kept.map((run) => run.metrics[colour]).filter(isNumber).map((value) => scaled(colour, value)));
  const bar = { showscale: index === 0, colorbar: colourBar(colour), cmin: scale[0], cmax: scale[1] };
  return { ...made, marker: { ...made.marker, color: values(colour), colorscale: CIVIDIS, ...bar } };
}

const colourBar = (name) => ({ title: { text: plain(unit(name)), side: "right" }, thickness: 12, outlinewidth: 0 });
