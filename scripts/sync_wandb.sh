#!/usr/bin/env bash
# Sends runs that were tracked offline to Weights & Biases.
#
#   scripts/sync_wandb.sh [--dry-run] [--unfinished] [FOLDER]      FOLDER: outputs by default
#
# A run that was resumed has a directory of W&B's for every process that worked on it. Each of them holds the run from
# its first row, so that the newest is sent and the others are not needed. What was sent before is left out.
# --unfinished also sends runs without results.json. Such a run is sent again when it has gone on, and it is for W&B's
# server to put the new rows in the place of the old ones.
#
# Exit codes: 0 everything is there, 1 something could not be sent, 2 the command cannot be carried out.
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
    [ "$(wc -c 2>/dev/null <"$file" || echo 0)" -gt 7 ] || continue # killed before W&B wrote more than a header
    case $seen in *"|$run/${name#*-}|"*) continue ;; esac           # an older one
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
    # wandb may end with 0 and have sent nothing: the mark that it leaves is what counts.
    wandb sync ${again:+"$again"} "$directory" </dev/null || true
    if [ -e "$file.synced" ] && [ ! "$file" -nt "$file.synced" ]; then
        sent=$((sent + 1))
    else
        failed=$((failed + 1))
        echo "sync_wandb: not sent: $directory" >&2
    fi
done < <(find "$folder" -type d -path '*/wandb/offline-run-*' -prune | sort -r) # of a run, the newest first

$dry || echo "$sent sent, $failed failed"
[ "$waiting" -eq 0 ] || echo "$waiting unfinished (--unfinished sends them too)" >&2
[ "$failed" -eq 0 ]
