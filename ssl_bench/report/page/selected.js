// The selected runs side by side: settings that differ, metrics and pictures.

const MOST_BESIDE = 6;

function selectedSection() {
  const runs = chosenRuns().slice(0, MOST_BESIDE), two = runs.length === 2;
  if (runs.length < 2) return fill(byId("selected"));
  const its = (run) => el("th", { scope: "col" }, link(run, run.id.split("/").at(-1)));
  const heads = (first, ...last) => [first, ...runs.map(its), ...last];
  const differing = report.keys.filter((key) => differ(key, runs));
  const measured = report.metrics.filter((name) => runs.some((run) => name in run.metrics));
  const settingRows = differing.map((key) => [rowHead(key), ...runs.map((run) => text(valueOf(run, key)))]);
  const metricRows = measured.map((name) => {
    const values = runs.map((run) => run.metrics[name]), difference = values[1] - values[0];
    const cells = [rowHead(unit(name)), ...values.map((value) => numeric(shown(name, value)))];
    return two ? [...cells, numeric(signed(difference, shown(name, difference)))] : cells;
  });
  const count = `${counted(differing.length, "setting")} differ${differing.length === 1 ? "s" : ""}`;
  fill(byId("selected"), el("h2", {}, "Selected runs"),
    el("h3", {}, count),
    table("settings that differ", heads("setting"), settingRows, { id: "difference", class: "wrap" }),
    el("h3", {}, "Metrics"), table("metrics of the runs", heads("metric", ...(two ? ["difference"] : [])), metricRows),
    runs.some((run) => run.pictures.length) && el("div", { class: "pair" }, runs.map((run) =>
      el("div", {}, el("h3", {}, run.label || run.id), pictures(run)))));
}

function pictures(run) {
  if (!run.pictures.length) return soft("No pictures besides the curves.");
  const shownOrLinked = ({ name, src, href }) => (src ? el("img", { src, alt: name, loading: "lazy" })
    : el("a", { href, target: "_blank" }, "open the picture (too large for this file)"));
  return el("div", { class: "pictures" }, run.pictures.map((each) =>
    el("figure", {}, shownOrLinked(each), el("figcaption", {}, each.name))));
}
