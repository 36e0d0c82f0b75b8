// Heat maps: a metric over two settings with numbers.

// Maps of a metric over two settings with numbers: one for each value of what else varies but the seed, so that the
// mean of a cell is over seeds.
function heatMaps(name, numbers, runs) {
  const pairs = numbers.flatMap((x, i) => numbers.slice(i + 1).map((y) => [x, y]));
  const found = pairs.map((pair) => mapsOf(pair, runs)).filter(({ parts }) => parts.length);
  if (!found.length) return null;
  const { pair: chosen, others, parts } = found.find(({ pair }) => list(pair) === view.heat) ?? found[0];
  const drawn = parts.slice(0, MOST_PANELS);
  const cells = parts.map(([, its]) => grouped(chosen, its).map(([at, members]) => ({
    at, ...statistics(members.map((run) => scaled(name, run.metrics[name]))),
  })));
  const means = cells.flat().map(({ mean }) => mean), range = { zmin: Math.min(...means), zmax: Math.max(...means) };
  return el("div", { class: "multiples" },
    el("h3", {}, `${unit(name)} over ${chosen.join(" and ")}`),
    found.length > 1 && row(choice("Settings", "heat", found.map(({ pair }) => [list(pair), pair.join(" and ")]))),
    el("div", { class: "panels" }, drawn.map(([values], i) =>
      heatMap(name, chosen, cells[i], withValues(others, values), range))),
    soft(`A cell has the mean over seeds and the number of runs, n. ${tooMany(drawn, parts, "plots")}`));
}

// What else varies but a pair of settings, and the runs of each of its values that fill more than a line of a map.
function mapsOf(pair, runs) {
  const having = runs.filter((run) => pair.every((key) => isNumber(valueOf(run, key))));
  const others = independent([...pair, ...plotted(having)], having).filter((key) => !pair.includes(key));
  return { pair, others, parts: grouped(others, having).filter(([, its]) => crossed(pair, its)) };
}

// Whether a value of each of two settings is there with several values of the other one.
function crossed(pair, runs) {
  const places = grouped(pair, runs).map(([values]) => values);
  return [0, 1].every((which) => new Set(places.map((values) => values[which])).size < places.length);
}

function heatMap(name, [x, y], cells, title, range) {
  const inOrder = (place) => [...new Set(cells.map(({ at }) => at[place]))].sort((a, b) => a - b);
  const [columns, rows] = [inOrder(0), inOrder(1)];
  const grid = (content, none = null) => rows.map((b) => columns.map((a) => {
    const cell = cells.find(({ at }) => at[0] === a && at[1] === b);
    return cell ? content(cell) : none;
  }));
  const digits = (value) => (about(name).share ? value.toFixed(1) : number(value));
  const make = () => ({
    layout: layout({ title: x, type: "category" }, { title: y, type: "category" }),
    traces: [{
      type: "heatmap", x: columns.map(String), y: rows.map(String), z: grid(({ mean }) => mean), ...range,
      colorscale: CIVIDIS, colorbar: colourBar(name), xgap: 2, ygap: 2, hoverongaps: false,
      text: grid(({ mean, n }) => `${digits(mean)}<br>n=${n}`, ""), texttemplate: "%{text}",
      customdata: grid((cell) => meanText(cell, digits)),
      hovertemplate: `${plain(x)}=%{x}<br>${plain(y)}=%{y}<br>%{customdata}<extra></extra>`,
    }],
  });
  const drawn = chart(`${name} over ${x} and ${y}, ${title}`, make);
  return el("div", { class: "panel" }, title && el("h4", {}, title), drawn);
}
