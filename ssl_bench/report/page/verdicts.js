// For each setting that varies: is one of its values better than another? As `ssl-bench compare` says it.

function verdictSection() {
  fill(byId("verdicts"));
}
