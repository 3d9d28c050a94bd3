#!/usr/bin/env bash
# A profile that is stopped or killed at any moment resumes and ends with the same file; a rank that
# dies or hangs ends the job with the documented code.
# label: mpi
# timeout: 300
set -uo pipefail
tmp=$(mktemp -d)
trap 'pkill -KILL -f "$tmp" 2>/dev/null; rm -rf "$tmp"' EXIT
cd "$tmp"
fail() { echo "FAILED: $*"; tail -5 ./*.err 2>/dev/null; exit 1; }
"$RIPPLEKV_BUILD/make_tiny" tiny.gguf || fail "no tiny model"
for i in $(seq 400); do printf 'line %d of a text that is long enough to be cut into many samples\n' "$i"; done >text.txt
args=(profile --model tiny.gguf --calibration text.txt --samples 40 --context 120 --response 8 --epsilon 0.3,0.1
    --draws 4 --threads 1)
run() { # NAME P EXTRA...
    local name=$1 p=$2
    shift 2
    "$MPIRUN" -n "$p" "$RIPPLEKV_BIN" "${args[@]}" --output "$tmp/$name.h5" "$@" >"$name.out" 2>"$name.err"
}
same() { [ -z "${RIPPLEKV_PYTHON:-}" ] || "$RIPPLEKV_PYTHON" "$RIPPLEKV_ROOT/tests/same_profile.py" "$@"; }
wait_journal() { # NAME: until something is saved
    for _ in $(seq 600); do
        [ "$(cat "$tmp/$1".h5.journal.* 2>/dev/null | wc -c)" -gt 2000 ] && return 0
        sleep 0.02
    done
    return 1
}
ranks_of() { pgrep -f "$RIPPLEKV_BIN profile .*$1.h5" | while read -r p; do
    [ "$(cat "/proc/$p/comm" 2>/dev/null)" = ripplekv ] && echo "$p"; done; }

run whole 1 || fail "plain run: $?"
run whole2 2 || fail "two ranks: $?"
same whole.h5 whole2.h5 || fail "one rank and two differ"

# stopped on request: 75, then resumed by another number of ranks
run stop 2 & job=$!
wait_journal stop || fail "nothing saved"
for p in $(ranks_of stop); do kill -TERM "$p"; done
wait $job
rc=$?
if [ $rc = 75 ]; then
    [ ! -e stop.h5 ] || fail "stopped, yet the file is there"
    run stop 3 --resume || fail "resume: $?"
elif [ $rc != 0 ]; then
    fail "stop request ended with $rc"
fi
same whole.h5 stop.h5 || fail "resumed file differs"

# a killed rank ends the job; the journal survives
run kill 2 --replicas 2 & job=$!
wait_journal kill || fail "nothing saved"
victim=$(ranks_of kill | tail -1)
start=$SECONDS
[ -n "$victim" ] && kill -KILL "$victim"
wait $job
rc=$?
[ $((SECONDS - start)) -le 10 ] || fail "the job outlived a killed rank by $((SECONDS - start)) s"
[ $rc != 0 ] || [ -e kill.h5 ] || fail "a killed rank went unnoticed"
for f in kill.h5.journal.*; do # as if killed in the middle of a write
    [ -e "$f" ] && printf 'torn' >>"$f"
done
run kill 1 --resume || fail "resume after a kill: $?"
same whole.h5 kill.h5 || fail "file after a kill differs"
[ -z "$(find . -name 'kill.h5.journal*')" ] || fail "journals left behind"

# a hanging rank: its peer gives up at the deadline with 71
run hang 2 --timeout 3 & job=$!
wait_journal hang || fail "nothing saved"
victim=$(ranks_of hang | tail -1)
start=$SECONDS
[ -n "$victim" ] && kill -STOP "$victim"
wait $job
rc=$?
if [ $rc != 0 ]; then # 0: it was done before the signal
    [ $rc = 71 ] || fail "a hanging rank ended the job with $rc"
    [ $((SECONDS - start)) -le 20 ] || fail "the deadline took $((SECONDS - start)) s"
    grep -q "ERROR PEER" hang.err || fail "no line about the peer"
fi
echo "interrupted runs end as documented"
