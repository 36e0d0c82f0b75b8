// One run: where it is, its command, settings, metrics, pictures and the end of its log.

function detail() {
  const dialog = byId("detail"), run = view.run ? byName(view.run) : null;
  if (!run && !view.run) return dialog.open && dialog.close();
  const close = el("button", { type: "button", onclick: () => dialog.close(), "data-focus": "close" }, "Close");
  const head = (title) => el("div", { class: "head" }, el("h2", {}, title), close);
  if (!run) {
    fill(dialog, el("div", { class: "detail" }, head("No such run"), el("p", {}, `There is no run ${view.run} in this report.`)));
  } else {
    const both = names(view.compare).filter((id) => id !== run.id).slice(-1);
    fill(dialog, el("div", { class: "detail" }, head(run.label || run.id),
      el("div", { class: "row" }, state(run.state), el("span", { class: "soft" }, facts(run)),
        el("button", { type: "button", onclick: () => { set({ compare: list([...both, run.id]), run: "" }); byId("compare").scrollIntoView(); } }, both.length ? `Compare with ${both[0].split("/").at(-1)}` : "Compare with another run"),
        el("button", { type: "button", onclick: () => set({ select: list([...new Set([...names(view.select), run.id])]), run: "" }) }, "Select")),
      run.reason ? el("p", {}, state("failed"), ` ${run.reason}`) : null,
      run.warnings.map((sentence) => el("p", { class: "warned" }, `\u26a0 ${sentence}`)),
      run.folder ? el("p", {}, "In ", el("code", {}, run.folder)) : el("p", { class: "soft" }, "It has no folder yet."),
      command(run.command),
      el("div", { class: "pair" },
        el("div", {}, el("h3", {}, "Metrics"), el("table", {}, el("tbody", {}, allMetrics.filter((name) => name in run.metrics).map((name) => el("tr", {}, el("th", { scope: "row" }, unit(name)), el("td", { class: "number" }, shown(name, run.metrics[name])))))),
          run.not_finite.length ? el("p", {}, `Not finite: ${run.not_finite.join(", ")}`) : null),
        el("div", {}, el("h3", {}, "Settings that vary"), el("table", { class: "wrap" }, el("tbody", {}, settings.map((key) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, text(valueOf(run, key))))))))),
      Object.keys(run.curves).length ? curvePanels([run], curveNames([run]).slice(0, 6)) : null,
      run.pictures.length ? [el("h3", {}, "Pictures"), pictures(run)] : null,
      run.log ? [el("h3", {}, "End of the log"), el("pre", {}, run.log)] : null,
      Object.keys(run.versions).length ? el("details", {}, el("summary", {}, "Versions and hardware"), el("pre", {}, [`hardware: ${run.hardware}`, ...Object.entries(run.versions).map(([name, value]) => `${name}: ${value}`)].join("\n"))) : null));
  }
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

const facts = (run) => [
  isNumber(run.epoch) ? `epoch ${number(run.epoch)}${run.epochs ? ` of ${number(run.epochs)}` : ""}` : "",
  isNumber(run.speed) ? `${number(Math.round(run.speed))} images/s` : "", duration(run.seconds),
  isNumber(run.left) ? `${duration(run.left)} left` : "", run.host ? `on ${run.host}` : "", run.hardware ?? "",
  run.began ? `began ${when(run.began)}` : "",
].filter(Boolean).join(" \u00b7 ");
