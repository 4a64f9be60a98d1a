#!/bin/bash
# warned.sh RUN COMMAND…: start a launcher (torchrun) on this node, and let Slurm's warning reach what it launched.
#
# Slurm warns with USR1 before the time is up, and with TERM before preemption. USR1 would kill torchrun, and after TERM
# it gives its workers half a minute, too little for a large checkpoint. So torchrun hears no USR1 and the workers hear
# it directly: they finish their step, write a checkpoint and end. Ends with 75 then, as `electra` alone would.
set -uo pipefail
run=$1
shift
warned=

warn() {
    warned=yes
    pkill -USR1 -P "$launcher"
}

trap '' USR1 # what is ignored now stays ignored in torchrun; its workers set a handler of their own
"$@" &
launcher=$!
trap warn USR1 TERM
while true; do
    wait "$launcher" # a signal ends the wait, not the launcher
    code=$?
    kill -0 "$launcher" 2> /dev/null || break
done
# torchrun ends with 1 whatever its workers ended with; the run's folder knows.
if [[ -n $warned ]] && grep -q '"status": "stopped"' "$run/status.json"; then
    exit 75
fi
exit "$code"
