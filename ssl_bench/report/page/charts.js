// Plots: colours, axes, and drawing when a plot comes into view.

// Okabe and Ito's colours, distinct for every kind of colour vision; lines differ in dashes and markers too.
const COLOURS = {
  light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#3b3f46", "#7a5195"],
  dark: ["#56B4E9", "#E69F00", "#1fc597", "#DD97BC", "#F0E442", "#f08a4b", "#e9ecf1", "#b39ddb"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const STROKES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x"];
const CIVIDIS = [[0, "#00204d"], [0.25, "#414d6b"], [0.5, "#7c7b78"], [0.75, "#bcae6c"], [1, "#ffea46"]];
const FEW_VALUES = 12; // an axis with at most so many values has a tick at each

let printing = false;
const dark = () => !printing && document.documentElement.dataset.theme === "dark";
const style = (index) => {
  const colours = COLOURS[dark() ? "dark" : "light"];
  return { colour: colours[index % colours.length], dash: DASHES[index % DASHES.length], symbol: SYMBOLS[index % SYMBOLS.length] };
};

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
  const { traces, layout, onclick } = make();
  if (printing) Object.assign(layout, { width: node.className === "plot" ? 335 : 690, height: 230 });
  // Nothing leaves the page: plotly 7 has a button that uploads a plot to its makers, unless it is turned off.
  const local = { showSendToCloud: false, plotlyServerURL: "" };
  window.Plotly.newPlot(node, traces, layout, { ...local, displaylogo: false, responsive: !printing, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
  if (onclick) node.on("plotly_click", onclick);
  document.body.dataset.drawn ??= String(Math.round(performance.now())); // for measurements
}

// Draw the plots in view without waiting for the observer.
function drawVisible() {
  for (const node of [...waiting.keys()]) if (node.getBoundingClientRect().top < innerHeight) drawNow(node);
}

// A plot; make() returns its traces and layout when it comes into view.
function chart(label, make, kind = "plot") {
  const node = el("div", { class: kind, role: "img", "aria-label": label });
  node.make = make;
  waiting.set(node, make);
  watcher.observe(node);
  return node;
}

// New content of a section.
function fill(section, ...children) {
  for (const node of section.querySelectorAll(".js-plotly-plot")) window.Plotly.purge(node);
  for (const node of waiting.keys()) if (section.contains(node)) { waiting.delete(node); watcher.unobserve(node); }
  section.replaceChildren(...children.flat(9).filter(Boolean));
}

function layout(x, y, more = {}) {
  const of = (name) => (printing ? { ink: "#14181f", line: "#dde1e8", card: "#fff", soft: "#586070" }[name] : getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  const axis = { gridcolor: of("line"), zerolinecolor: of("line"), linecolor: of("soft"), automargin: true, ticks: "outside", tickcolor: of("line") };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: of("ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    margin: { l: 56, r: 16, t: 12, b: 48 }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: of("card"), bordercolor: of("line"), font: { color: of("ink") }, align: "left", namelength: -1 },
    ...more,
    xaxis: { ...axis, ...x, title: { text: plain(x.title ?? ""), standoff: 8 } },
    yaxis: { ...axis, ...y, title: { text: plain(y.title ?? ""), standoff: 8 } },
  };
}

// An axis of a key: logarithmic for positive numbers over a factor of 8 or more, texts as categories.
function axisOf(name, values) {
  const different = [...new Set(values)];
  if (!different.every(isNumber)) return { title: name, type: "category" };
  const sorted = different.sort((a, b) => a - b), log = sorted[0] > 0 && sorted.at(-1) / sorted[0] >= 8;
  const ticks = sorted.length <= FEW_VALUES ? { tickmode: "array", tickvals: sorted, ticktext: sorted.map(number) } : {};
  return { title: name, type: log ? "log" : "linear", ...ticks };
}

// The names of lines with samples of their look.
function legend(labels) {
  return el("ul", { class: "legend" }, labels.map((label, index) => {
    const look = style(index), space = "http://www.w3.org/2000/svg";
    const sample = document.createElementNS(space, "svg");
    sample.setAttribute("width", "34");
    sample.setAttribute("height", "10");
    sample.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(space, "line");
    const looks = { x1: 0, x2: 34, y1: 5, y2: 5, stroke: look.colour, "stroke-width": 2.5, "stroke-dasharray": STROKES[look.dash] };
    for (const [name, value] of Object.entries(looks)) line.setAttribute(name, value);
    sample.append(line);
    return el("li", { title: label }, sample, el("span", {}, label));
  }));
}

addEventListener("beforeprint", () => {
  printing = true;
  document.documentElement.dataset.before = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  draw(["theme"]);
  for (const node of [...waiting.keys()]) drawNow(node);
});
addEventListener("afterprint", () => {
  printing = false;
  document.documentElement.dataset.theme = document.documentElement.dataset.before;
  draw(["theme"]);
});
