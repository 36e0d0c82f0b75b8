// Plots: colours, axes, and drawing when a plot comes into view.

// Okabe and Ito's colours, distinct for every kind of colour vision; lines differ in dashes and markers too.
const COLOURS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#3b3f46", "#7a5195"],
  dark: ["#56B4E9", "#E69F00", "#1fc597", "#DD97BC", "#F0E442", "#f08a4b", "#e9ecf1", "#b39ddb"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const STROKES = ["", "7 4", "2 3", "7 3 2 3", "11 4", "11 3 2 3"]; // the same dashes in a legend
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
const CIVIDIS = [[0, "#00204d"], [0.25, "#414d6b"], [0.5, "#7c7b78"], [0.75, "#bcae6c"], [1, "#ffea46"]];
const FEW_VALUES = 12; // an axis with at most so many values has a tick at each

let printing = false;
const colourOf = (index) => COLOURS[document.documentElement.dataset.theme === "dark" ? "dark" : "light"][index % 8];

// Plotly reads some tags in its texts: a name of a run must stay a text.
const plain = (words) => text(words).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const waiting = new Map(); // plots that were not in view yet
const watcher = new IntersectionObserver((seen) => {
  for (const { target } of seen.filter((each) => each.isIntersecting)) drawNow(target);
}, { rootMargin: "300px" });

function drawNow(node) {
  const make = waiting.get(node);
  if (!make || !node.isConnected) return;
  waiting.delete(node);
  watcher.unobserve(node);
  const { traces, layout } = make();
  if (printing) Object.assign(layout, { width: node.className === "plot" ? 335 : 690, height: 230 });
  // Nothing leaves the page: plotly has a button that uploads a plot to its makers, unless it is turned off.
  const local = { showSendToCloud: false, plotlyServerURL: "" };
  const svg = { name: "Download plot as an SVG", icon: window.Plotly.Icons.disk, click: saveDrawing };
  const bar = { displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"], modeBarButtonsToAdd: [svg] };
  // A finger does not hover, so that the bar would stay over the plot.
  const shown = { displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, responsive: !printing };
  window.Plotly.newPlot(node, traces, layout, { ...local, ...bar, ...shown });
  document.body.dataset.drawn ??= String(Math.round(performance.now())); // for measurements
}

const saveDrawing = (node) => window.Plotly.downloadImage(node, { format: "svg", filename: "plot" });

// Draw the plots in view without waiting for the observer.
function drawVisible() {
  for (const node of [...waiting.keys()]) if (node.getBoundingClientRect().top < innerHeight) drawNow(node);
}

// A plot; make() returns its traces and layout when it comes into view.
function chart(label, make, kind = "plot") {
  const node = el("div", { class: kind, role: "img", "aria-label": label });
  waiting.set(node, make);
  watcher.observe(node);
  return node;
}

// New content of a section.
function fill(section, ...children) {
  for (const node of section.querySelectorAll(".js-plotly-plot")) window.Plotly.purge(node);
  for (const node of waiting.keys()) {
    if (!section.contains(node)) continue;
    waiting.delete(node);
    watcher.unobserve(node);
  }
  section.replaceChildren(...children.flat(9).filter(Boolean));
}

function layout(x, y, more = {}) {
  const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue(`--${name}`).trim();
  const lines = { gridcolor: of("line"), zerolinecolor: of("line"), linecolor: of("soft"), tickcolor: of("line") };
  const axis = ({ title = "", ...given }) =>
    ({ ...lines, automargin: true, ticks: "outside", ...given, title: { text: plain(title), standoff: 8 } });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: of("ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    margin: { l: 56, r: 16, t: 12, b: 48 }, showlegend: false, hovermode: "closest", modebar: { bgcolor: "rgba(0,0,0,0)" },
    hoverlabel: { bgcolor: of("card"), bordercolor: of("line"), font: { color: of("ink") }, align: "left" },
    xaxis: axis(x), yaxis: axis(y), ...more,
  };
}

// An axis of a key: logarithmic for positive numbers over a factor of 4 or more, texts as categories.
function axisOf(name, values) {
  const different = [...new Set(values)];
  if (!different.every(isNumber)) return { title: name, type: "category" };
  const sorted = different.sort((a, b) => a - b), log = sorted[0] > 0 && sorted.at(-1) / sorted[0] >= 4;
  const ticks = { tickmode: "array", tickvals: sorted, ticktext: sorted.map(number) };
  return { title: name, type: log ? "log" : "linear", ...(sorted.length <= FEW_VALUES ? ticks : {}) };
}

// A line of the look that the legend gives to its place.
function line(index, x, y, more = {}) {
  const color = colourOf(index), symbol = SYMBOLS[index % SYMBOLS.length];
  return {
    type: "scatter", mode: "lines+markers", x, y, line: { color, dash: DASHES[index % DASHES.length], width: 2 },
    marker: { color, symbol, size: 8 }, hovertemplate: "%{text}<extra></extra>", ...more,
  };
}

const errorBars = (points) => ({ type: "constant", value: pooled(points), thickness: 1.2, width: 3 });

// The y axis of a metric; that of a share ends within 0 and 100.
const axisOfMetric = (name, title = unit(name)) =>
  ({ title, ...(about(name).share ? { autorangeoptions: { clipmin: 0, clipmax: 100 } } : {}) });

// The names of lines with samples of their look.
function legend(labels) {
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  return el("ul", { class: "legend" }, labels.map((label, index) => {
    const dashes = { "stroke-width": 2.5, "stroke-dasharray": STROKES[index % STROKES.length] };
    const sample = svg("svg", { width: 34, height: 10, "aria-hidden": "true" });
    sample.append(svg("line", { x1: 0, x2: 34, y1: 5, y2: 5, stroke: colourOf(index), ...dashes }));
    return el("li", { title: label }, sample, el("span", {}, label));
  }));
}

// A printed page is light and has all plots, at the size of paper.
function print(on) {
  const page = document.documentElement.dataset;
  printing = on;
  if (on) [page.before, page.theme] = [page.theme, "light"];
  else page.theme = page.before;
  draw(["theme"]);
  if (on) for (const node of [...waiting.keys()]) drawNow(node);
}

addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
