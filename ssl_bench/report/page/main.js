// Starts the page, and reads it again where its file is written again.

const PAUSE = 5000; // milliseconds without a key, a click or scrolling, after which the page is read again
const TITLES = {
  matters: "What matters", experiments: "Experiments", overview: "Progress", plots: "Plots", verdicts: "Comparisons", runs: "Runs", curves: "Curves", seeds: "Over seeds", selected: "Selected",
};
const FIRST_SECTIONS = [
  { keys: ["theme"], draw: applyTheme }, { keys: ["experiment"], draw: applyExperiment },
  { keys: ["experiment", "metric"], draw: bar }, { keys: ["experiment", "where"], draw: applyFilter },
  { keys: ["experiment", "metric"], draw: mattersSection }, { keys: ["experiment", "metric"], draw: experimentList },
  { keys: ["experiment"], draw: overview },
  { keys: ["experiment", "where", "metric", "by", "axis", "facet", "colour", "heat", "theme"], draw: plotSection },
];
const LATER_SECTIONS = [
  { keys: ["experiment", "metric"], draw: verdictSection },
  { keys: ["experiment", "where", "metric", "sort", "group", "columns", "select", "rows"], draw: runSection },
  { keys: ["experiment", "where", "metric", "select", "names", "smooth", "clock", "theme"], draw: curveSection },
  { keys: ["experiment", "theme"], draw: seedSection },
  { keys: ["select"], draw: selectedSection },
  { keys: ["run", "theme"], draw: detail }, { keys: ["experiment", "select"], draw: navigation },
];

function applyTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const theme = ["light", "dark"].includes(view.theme) ? view.theme : system;
  if (!printing) document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "\u2600 Light" : "\u263e Dark";
  byId("theme").onclick = () => set({ theme: theme === "dark" ? "light" : "dark" });
}

function bar() {
  byId("where-from").textContent = `${report.outputs}, ${when(report.made)}`;
  const chosen = experiment()?.key ?? ALL, size = (group) => counted(group.runs.length, "run");
  byId("experiment").replaceChildren(
    ...report.groups.toReversed().map((each) => option(each.key, `${each.key || "."} (${size(each)})`, chosen)),
    option(ALL, `all ${counted(report.groups.length, "experiment")}`, chosen));
  byId("metric").replaceChildren(...metrics.map((name) => option(name, name, metric())));
  const known = [...settings, ...Object.keys(FIELDS), ...metrics];
  byId("filter-keys").replaceChildren(...known.map((name) => el("option", { value: `${name}=` })));
}

function navigation() {
  const there = Object.keys(TITLES).filter((id) => byId(id).hasChildNodes());
  byId("nav").replaceChildren(...there.map((id) => button(TITLES[id], `nav ${id}`, () => byId(id).scrollIntoView())));
}

// Read the file again when nobody touches the page; the reader stays where they are.
function follow() {
  if (history.state) {
    bringBack(history.state);
    scrollTo(0, history.state.top);
    history.replaceState(null, "");
  }
  let timer;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      history.replaceState({ ...reader(), top: scrollY }, "");
      location.reload();
    }, PAUSE);
  };
  for (const touch of ["keydown", "pointerdown", "scroll"]) addEventListener(touch, wait, { capture: true });
  wait();
}

// The packed content of an element, which the page needs no longer.
function take(id) {
  const words = byId(id).textContent;
  byId(id).remove();
  return unpack(words);
}

async function start() {
  const [data, plotly] = await Promise.all([take("data"), take("plotly")]);
  const script = el("script");
  script.nonce = document.querySelector("script[nonce]").nonce;
  script.textContent = plotly;
  document.head.append(script);
  report = JSON.parse(data);
  readAddress();
  sections.push(...FIRST_SECTIONS);
  draw();
  drawVisible();
  await new Promise((resolve) => setTimeout(resolve)); // the browser shows the first plots
  addCurves(JSON.parse(await take("all-curves")));
  sections.push(...LATER_SECTIONS);
  for (const section of LATER_SECTIONS) section.draw();
  listen();
  document.body.dataset.ready = String(Math.round(performance.now())); // for measurements
  if (byId("live")) follow();
}

function listen() {
  let timer;
  byId("filter").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => set({ where: byId("filter").value.trim() }), 200);
  });
  for (const key of ["experiment", "metric"]) {
    byId(key).addEventListener("change", () => set({ [key]: byId(key).value }));
  }
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("runs").focus(); });
  byId("detail").addEventListener("close", () => set({ run: "" }));
  document.addEventListener("click", clicked);
  document.addEventListener("keydown", pressed);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(["theme"]));
  for (const moved of ["hashchange", "popstate"]) addEventListener(moved, () => draw(readAddress()));
}

const openMenus = () => document.querySelectorAll("details.menu[open]");

// A link to a run opens it here, unless it is to have a window of its own; a click elsewhere closes a menu.
function clicked(event) {
  const run = event.target.closest?.("a[data-run]");
  if (run && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    set({ run: run.dataset.run });
  }
  for (const menu of openMenus()) if (event.target.isConnected && !menu.contains(event.target)) menu.open = false;
}

function pressed(event) {
  if (event.key === "Escape") for (const menu of openMenus()) { menu.open = false; menu.firstChild.focus(); }
  if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) {
    event.preventDefault();
    byId("filter").focus();
  }
}

start().catch((error) => {
  byId("broken").hidden = false;
  byId("broken").textContent = `The report cannot be shown: ${error.message}. It needs a browser of 2023 or newer.`;
  throw error;
});
