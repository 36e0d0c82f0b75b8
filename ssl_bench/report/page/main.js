// Starts the page, and asks for new data where it is served.

const PAUSE = 3000; // milliseconds between two questions for new data
const TITLES = { overview: "Overview", plots: "Plots", runs: "Runs", curves: "Curves", compare: "Two runs", papers: "Papers" };

function applyFilter() {
  const input = byId("filter"), says = byId("filter-says");
  if (document.activeElement !== input) input.value = view.where;
  try {
    const conditions = parseFilter(view.where);
    kept = scope.filter((run) => passes(run, conditions));
    input.removeAttribute("aria-invalid");
    says.textContent = kept.length === scope.length ? counted(kept.length, "run") : `${kept.length} of ${counted(scope.length, "run")}`;
    if (!kept.length && scope.length) says.textContent = whyNone(conditions);
  } catch (error) { // the runs stay as they were
    kept = kept.map((run) => byName(run.id)).filter((run) => scope.includes(run));
    kept = kept.length ? kept : scope;
    input.setAttribute("aria-invalid", "true");
    says.textContent = error.message;
  }
}

function applyTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const theme = ["light", "dark"].includes(view.theme) ? view.theme : system;
  if (!printing) document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "\u2600 Light" : "\u263e Dark";
  byId("theme").onclick = () => set({ theme: theme === "dark" ? "light" : "dark" });
}

function bar() {
  byId("where-from").textContent = `${report.outputs}${report.made ? `, ${when(report.made)}` : ""}`;
  const chosen = experiment()?.key ?? ALL, size = (group) => counted(report.runs.filter((run) => report.groups[run.group] === group).length, "run");
  byId("experiment").replaceChildren(
    ...report.groups.toReversed().map((group) => option(group.key, `${group.key || "."} (${size(group)})`, chosen)),
    option(ALL, `all ${counted(report.groups.length, "experiment")}`, chosen));
  byId("metric").replaceChildren(...metrics.map((name) => option(name, name, metric())));
  const known = [...settings, ...Object.keys(FIELDS), ...metrics];
  byId("filter-keys").replaceChildren(...known.map((name) => el("option", { value: `${name}=` })));
}

function navigation() {
  const there = Object.keys(TITLES).filter((id) => byId(id).hasChildNodes());
  byId("nav").replaceChildren(...there.map((id) => el("button", { type: "button", "data-focus": `nav ${id}`, onclick: () => byId(id).scrollIntoView() }, TITLES[id])));
}

async function refresh(known) {
  try {
    const answer = await fetch("data", { headers: known ? { "If-None-Match": known } : {}, cache: "no-store" });
    if (answer.status === 200) {
      load(JSON.parse(await decompress(answer.body)));
      draw();
    }
    byId("live").textContent = `live, ${new Date().toLocaleTimeString()}`;
    known = answer.headers.get("ETag") ?? known;
  } catch {
    byId("live").textContent = "the server has ended";
  }
  setTimeout(() => refresh(known), PAUSE);
}

async function start() {
  const take = (id) => { const words = byId(id).textContent; byId(id).remove(); return unpack(words); };
  const [data, plotly] = await Promise.all([take("data"), take("plotly")]);
  const script = document.createElement("script");
  script.nonce = document.querySelector("script[nonce]").nonce;
  script.textContent = plotly;
  document.head.append(script);
  load(JSON.parse(data));
  readAddress();
  sections.push(
    { keys: ["theme"], draw: applyTheme }, { keys: ["experiment"], draw: applyExperiment },
    { keys: ["experiment", "metric"], draw: bar }, { keys: ["experiment", "where"], draw: applyFilter },
    { keys: ["experiment", "metric"], draw: overview },
    { keys: ["experiment", "where", "metric", "by", "axis", "facet", "theme"], draw: plotSection },
  );
  draw();
  drawVisible();
  await new Promise((resolve) => setTimeout(resolve)); // the browser shows the first plots
  addCurves(JSON.parse(await take("all-curves")));
  const later = [
    { keys: ["experiment", "where", "metric", "sort", "group", "columns", "select", "rows"], draw: runTable },
    { keys: ["experiment", "where", "metric", "select", "names", "smooth", "clock", "theme"], draw: curveSection },
    { keys: ["compare", "theme", "smooth", "clock"], draw: comparison }, { keys: ["experiment", "theme"], draw: papers },
    { keys: ["run", "theme"], draw: detail }, { keys: ["experiment"], draw: navigation },
  ];
  sections.push(...later);
  for (const section of later) section.draw();
  let timer;
  byId("filter").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => set({ where: byId("filter").value.trim() }), 200);
  });
  byId("experiment").addEventListener("change", () => set({ experiment: byId("experiment").value }));
  byId("metric").addEventListener("change", () => set({ metric: byId("metric").value }));
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("runs").focus(); });
  byId("detail").addEventListener("close", () => set({ run: "" }));
  document.addEventListener("click", (event) => {
    const run = event.target.closest?.("a[data-run]");
    if (run && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); set({ run: run.dataset.run }); }
    for (const open of document.querySelectorAll("details.menu[open]")) if (!open.contains(event.target) && event.target.isConnected) open.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const open of document.querySelectorAll("details.menu[open]")) { open.open = false; open.firstChild.focus(); }
    if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) { event.preventDefault(); byId("filter").focus(); }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(["theme"]));
  addEventListener("hashchange", () => { const changed = readAddress(); if (changed.length) draw(changed); });
  addEventListener("popstate", () => { const changed = readAddress(); if (changed.length) draw(changed); });
  document.body.dataset.ready = String(Math.round(performance.now())); // for measurements
  if (document.body.dataset.live === "yes") refresh(null);
}

start().catch((error) => {
  byId("broken").hidden = false;
  byId("broken").textContent = `The report cannot be shown: ${error.message}. It needs a browser of 2023 or newer.`;
  throw error;
});
