// One run: where it is, its command, settings, metrics, pictures and the end of its log.

function detail() {
  const dialog = byId("detail"), run = view.run ? byName(view.run) : null;
  if (!view.run) return dialog.open && dialog.close();
  const head = el("div", { class: "head" }, el("h2", {}, run ? run.label || run.id : "No such run"),
    button("Close", "close", () => dialog.close()));
  fill(dialog, el("div", { class: "detail" }, head,
    run ? [summaryOf(run), numbersOf(run), filesOf(run)] : el("p", {}, `There is no run ${view.run} in this report.`)));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function summaryOf(run) {
  const select = () => set({ select: list([...new Set([...names(view.select), run.id])]), run: "" });
  return [
    row(state(run.state), el("span", { class: "soft" }, facts(run)), button("Select", "select", select)),
    run.reason && el("p", {}, run.reason),
    run.warnings.map((sentence) => el("p", { class: "warned" }, `\u26a0 ${sentence}`)),
    run.folder ? el("p", {}, "In ", el("code", {}, run.folder)) : soft("This run has not begun."),
    command(run.command),
  ];
}

function numbersOf(run) {
  const measured = report.metrics.filter((name) => name in run.metrics);
  const values = measured.map((name) => [rowHead(unit(name)), numeric(shown(name, run.metrics[name]))]);
  const vary = settings.map((key) => [rowHead(key), text(valueOf(run, key))]);
  return el("div", { class: "pair" },
    el("div", {}, el("h3", {}, "Metrics"), table("metrics", [], values),
      run.not_finite.length > 0 && el("p", {}, `Not finite: ${run.not_finite.join(", ")}`)),
    el("div", {}, el("h3", {}, "Settings that vary"), table("settings", [], vary, { class: "wrap" })));
}

function filesOf(run) {
  const versions = [["hardware", run.hardware], ...Object.entries(run.versions)];
  return [
    Object.keys(run.curves).length > 0 && curvePanels([run], curveNames([run]).all.slice(0, 6)),
    run.pictures.length > 0 && [el("h3", {}, "Pictures"), pictures(run)],
    run.log && [el("h3", {}, "End of the log"), el("pre", {}, run.log)],
    versions.length > 1 && el("details", {}, el("summary", {}, "Versions and hardware"),
      el("pre", {}, versions.map(([name, value]) => `${name}: ${value}`).join("\n"))),
  ];
}

const facts = (run) => [
  isNumber(run.epoch) && `epoch ${number(run.epoch)}${run.epochs ? ` of ${number(run.epochs)}` : ""}`,
  isNumber(run.speed) && `${number(Math.round(run.speed))} images/s`, duration(run.seconds),
  isNumber(run.left) && `${duration(run.left)} left`, run.host && `on ${run.host}`, run.hardware,
  run.began && `began ${when(run.began)}`,
].filter(Boolean).join(" \u00b7 ");
