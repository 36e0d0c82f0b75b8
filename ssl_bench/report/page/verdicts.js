// For each setting that varies: is one of its values better than another? In the words of `ssl-bench compare`.

function verdictSection() {
  const found = experiment()?.verdicts[metric()] ?? [];
  if (!found.length) return fill(byId("verdicts"));
  fill(byId("verdicts"), el("h2", {}, "Comparisons"),
    soft("Runs that differ in one setting and the seed only, as ssl-bench compare --by prints them: no filter changes it."),
    found.map(({ by, title, columns, rows, notes, below }) => [
      el("h3", {}, by), soft(title),
      table(`comparisons by ${by}`, columns, rows.map(([name, ...rest]) => [rowHead(name), ...rest]), { class: "stack" }),
      notes.map((note, i) => soft(`[${i + 1}] ${note}`)), below.map((line) => soft(line)),
    ]));
}
