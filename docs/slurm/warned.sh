#!/bin/bash
# warned.sh RUN COMMAND…: start a launcher (torchrun) on this node and forward Slurm's warning signal to its workers.
#
# Slurm sends USR1 before the time limit and TERM before preemption. USR1 would kill torchrun. After TERM torchrun gives
# its workers 30 seconds, too little for a large checkpoint. This script therefore makes torchrun ignore USR1 and sends
# USR1 to the workers directly. The workers finish their step, write a checkpoint and end. The script then ends with exit
# code 75, as `electra` itself does.
set -uo pipefail
run=$1
shift
warned=

warn() {
    warned=yes
    pkill -USR1 -P "$launcher"
}

trap '' USR1 # torchrun inherits the ignored signal; its workers install their own handlers
"$@" &
launcher=$!
trap warn USR1 TERM
while true; do
    wait "$launcher" # a signal ends the wait, not the launcher
    code=$?
    kill -0 "$launcher" 2> /dev/null || break
done
# torchrun ends with 1 whatever the exit codes of its workers; status.json holds the state of the run.
if [[ -n $warned ]] && grep -q '"status": "stopped"' "$run/status.json"; then
    exit 75
fi
exit "$code"
