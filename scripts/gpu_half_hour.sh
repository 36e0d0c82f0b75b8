#!/usr/bin/env bash
# Measure all that half an hour on a rented GPU is wanted for, in order of worth. Nothing is downloaded.
#
#   SSL_BENCH_DATA=/data OUT=/mnt/half_hour scripts/gpu_half_hour.sh      OUT: outputs/gpu_half_hour by default
#   scripts/gpu_half_hour.sh check step                                   only these parts, added to those in OUT
#   MINUTES=10 scripts/gpu_half_hour.sh                                   a shorter time; 29 by default
#
# Run it from the root of the repository, with the package and pytest installed; SSL_BENCH_DATA has the prepared CIFAR-10.
# Each part has a limit in seconds, its share of MINUTES; the last one, the runs of compare_losses.py that are missing, has
# what is left, and OUT/compare_losses.json has their numbers, to be committed as scripts/compare_losses.json. Alone
# it trains as much as two cores in four hours: scripts/gpu_half_hour.sh compare_losses. OUT/machine.txt has the versions,
# OUT/<part>.log what a part printed, and OUT/parts.tsv a line for each part that has ended: its limit, its seconds, its
# exit code and its command. A machine that goes away leaves what was done. A part that fails or reaches its limit does not stop the others; the exit code is then 1 in the end.
set -u

OUT=${OUT:-outputs/gpu_half_hour}
MINUTES=${MINUTES:-29}
NAMES="step check tests losses simclr dcl compare_losses"
for name in "$@"; do
    [[ " $NAMES " == *" $name "* ]] || { echo "there is no part $name: name some of $NAMES" >&2; exit 2; }
done
[[ "$MINUTES" =~ ^[1-9][0-9]{0,3}$ ]] || { echo "MINUTES=$MINUTES: set MINUTES to a whole number from 1 on" >&2; exit 2; }
mkdir -p "$OUT" || exit 1
chosen=" ${*:-$NAMES} " failed=0 child=""
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM HUP

part() { # NAME LIMIT COMMAND...     LIMIT: seconds of 29 minutes; 0: what is left, at whose end it is done
    local name=$1 limit=$((($2 * MINUTES + 28) / 29)) start=$SECONDS code=0 done=0
    [ "$2" -gt 0 ] || limit=$((MINUTES * 60 - SECONDS)) done=124
    shift 2
    [[ "$chosen" == *" $name "* ]] || return
    [ "$limit" -gt 0 ] || { echo "== $name: no time is left"; return; }
    echo "== $name, at most $limit s: $*"
    timeout --kill-after=20 "$limit" "$@" >"$OUT/$name.log" 2>&1 &
    child=$!
    wait "$child" || code=$?
    child=""
    [ "$code" -eq 0 ] || [ "$code" -eq "$done" ] || failed=1
    tail -n 5 "$OUT/$name.log"
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$limit" "$((SECONDS - start))" "$code" "$*" >>"$OUT/parts.tsv"
}

{
    python scripts/timing.py
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || echo "nvidia-smi does not answer"
} >"$OUT/machine.txt" 2>/dev/null
cifar="dataset=cifar10 batch_size=b512 epochs=20 evaluate=[knn,linear] evaluate.baselines=[] tracking=off paths.outputs=$OUT"
# shellcheck disable=SC2086  # words of a command
{
    part step 300 python scripts/benchmark_step.py --device cuda --precision auto --batch 64 1024 256 --rounds 2 --set compile=true --set precision=fp16 --json "$OUT/step.json"
    part check 300 python -m ssl_bench check "paths.outputs=$OUT"
    part tests 360 python -m pytest -m gpu -n 4 -vv tests/gpu
    part losses 180 python scripts/benchmark_losses.py --images 4096 --rounds 3
    part simclr 150 python -m ssl_bench train $cifar loss=infonce name=simclr
    part dcl 150 python -m ssl_bench train $cifar loss=dcl name=dcl
    part compare_losses 0 python scripts/compare_losses.py run --at-once "$(nproc)" --numbers "$OUT/compare_losses.json" "paths.outputs=$OUT/runs"
}
echo "== $OUT/parts.tsv"
exit "$failed"
