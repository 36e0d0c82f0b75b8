#!/usr/bin/env bash
# Send runs that were tracked offline to Weights & Biases.
#
#   scripts/sync_wandb.sh [--dry-run] [--unfinished] [FOLDER]      FOLDER: outputs by default
#
# A resumed run has one W&B directory per process that trained it. Each directory contains the run from its first row, so
# the script sends only the newest one. It skips directories that were sent before.
# --dry-run prints the commands and sends nothing.
# --unfinished also sends runs without results.json. Such a run is sent again after it has continued; W&B's server must
# then replace the old rows.
#
# Exit codes: 0 everything was sent, 1 something was not sent, 2 the command is wrong or wandb is not installed.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
refuse() {
    echo "sync_wandb: $1" >&2
    exit 2
}

folder="" dry=false unfinished=false
for argument in "$@"; do
    case "$argument" in
    --dry-run) dry=true ;;
    --unfinished) unfinished=true ;;
    -h | --help) usage && exit 0 ;;
    -*) refuse "there is no option $argument; --help lists them" ;;
    *) [ -z "$folder" ] || refuse "give one folder"; folder=$argument ;;
    esac
done
folder=${folder:-outputs}
[ -d "$folder" ] || refuse "there is no folder $folder"
command -v wandb >/dev/null || refuse "wandb is not installed: pip install wandb"

sent=0 failed=0 waiting=0 seen="|"
while IFS= read -r directory; do
    name=${directory##*/offline-run-} # <date>_<time>-<id>
    file=$directory/run-${name#*-}.wandb
    run=${directory%/wandb/*}
    [ "$(wc -c 2>/dev/null <"$file" || echo 0)" -gt 7 ] || continue # killed when W&B had written only a header
    case $seen in *"|$run/${name#*-}|"*) continue ;; esac           # an older directory
    seen="$seen$run/${name#*-}|"
    again=""
    if [ -e "$file.synced" ]; then
        [ "$file" -nt "$file.synced" ] || continue
        again=--include-synced
    fi
    if [ -e "$run/config.yaml" ] && [ ! -e "$run/results.json" ] && ! $unfinished; then
        waiting=$((waiting + 1))
        continue
    fi
    if $dry; then
        echo "wandb sync ${again:+$again }$(printf '%q' "$directory")"
        continue
    fi
    # wandb can exit with 0 without sending anything, so check the mark that it leaves.
    wandb sync ${again:+"$again"} "$directory" </dev/null || true
    if [ -e "$file.synced" ] && [ ! "$file" -nt "$file.synced" ]; then
        sent=$((sent + 1))
    else
        failed=$((failed + 1))
        echo "sync_wandb: not sent: $directory" >&2
    fi
done < <(find "$folder" -type d -path '*/wandb/offline-run-*' -prune | sort -r) # newest directory of a run first

$dry || echo "$sent sent, $failed failed"
[ "$waiting" -eq 0 ] || echo "$waiting unfinished (--unfinished sends them too)" >&2
[ "$failed" -eq 0 ]
