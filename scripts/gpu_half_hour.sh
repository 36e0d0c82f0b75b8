#!/usr/bin/env bash
# Measure all that half an hour on a rented GPU is wanted for, in order of worth. Needs no internet.
#
#   SSL_BENCH_DATA=/data OUT=/mnt/half_hour scripts/gpu_half_hour.sh      OUT: outputs/gpu_half_hour by default
#   OUT=/mnt/half_hour scripts/gpu_half_hour.sh check step                only these parts, beside what is in OUT
#
# Run it from the root of the repository, with the package and pytest installed. Each part has a limit in seconds; together
# they are 29 minutes. After each part OUT/half_hour.json and OUT/half_hour.md, with tables for a README, are written anew,
# and OUT/<part>.log has what the part printed: a machine that goes away leaves what was done. A part that fails or reaches
# its limit does not stop the others.
set -u

chosen="$*"
OUT=${OUT:-outputs/gpu_half_hour}
mkdir -p "$OUT" || exit 1
child=""
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 130' INT TERM HUP

is_chosen() {
    [ -z "$chosen" ] || [[ " $chosen " == *" $1 "* ]]
}

report() {
    sed -i "/^$1\t/d" "$OUT/parts.tsv"
    printf '%s\t' "$@" >>"$OUT/parts.tsv" # part, limit, seconds, how it ended, command
    echo >>"$OUT/parts.tsv"
    python scripts/half_hour_report.py "$OUT"
}

part() { # NAME LIMIT COMMAND...
    local name=$1 limit=$2 start=$SECONDS code=0
    shift 2
    is_chosen "$name" || return 0
    echo "== $name, at most $limit s: $*"
    timeout --kill-after=20 "$limit" "$@" >"$OUT/$name.log" 2>&1 &
    child=$!
    wait "$child" || code=$?
    child=""
    tail -n 5 "$OUT/$name.log"
    report "$name" "$limit" "$((SECONDS - start))" "$code" "$*"
}

[ -n "$chosen" ] || rm -f "$OUT/parts.tsv"
touch "$OUT/parts.tsv"
nvidia-smi >"$OUT/nvidia-smi.txt" 2>&1 || true # the driver
cifar="dataset=cifar10 batch_size=b512 epochs=20 evaluate=[knn,linear] evaluate.baselines=[] tracking=off paths.outputs=$OUT"
# shellcheck disable=SC2086  # words of a command
{
    part check 300 python -m ssl_bench check "paths.outputs=$OUT"
    part tests 360 python -m pytest -m gpu -vv tests/gpu
    part step 420 python scripts/benchmark_step.py --device cuda --precision auto --batch 32 64 128 256 512 1024 --json "$OUT/step.json"
    part losses 180 python scripts/benchmark_losses.py --images 4096 16384 --variants --json "$OUT/losses.json"
    if [ -f "${SSL_BENCH_DATA:-data}/cifar10/train_images.npy" ]; then
        part simclr 150 python -m ssl_bench train $cifar loss=infonce name=simclr
        part dcl 150 python -m ssl_bench train $cifar loss=dcl name=dcl
    else
        for name in simclr dcl; do
            is_chosen "$name" || continue
            echo "== $name skipped: there is no ${SSL_BENCH_DATA:-data}/cifar10/train_images.npy: set SSL_BENCH_DATA"
            report "$name" 0 0 skipped "needs CIFAR-10"
        done
    fi
    part other_losses 180 python scripts/benchmark_losses.py --images 4096 --rounds 3 --json "$OUT/other_losses.json"
}
echo "== $OUT/half_hour.md"
! cut -f4 "$OUT/parts.tsv" | grep -qvE '^(0|skipped)$' # 1 if a part failed
