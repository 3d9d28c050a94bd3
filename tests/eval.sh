#!/usr/bin/env bash
# ripplekv eval: the same records for any number of ranks, replicas, threads and chunks; a stopped or
# killed run goes on; what one configuration says alone it says in a sweep.
# label: mpi
# timeout: 300
set -uo pipefail
[ -n "${RIPPLEKV_PYTHON:-}" ] || { echo "no Python"; exit 77; }
tmp=$(mktemp -d)
trap 'pkill -KILL -f "$tmp" 2>/dev/null; rm -rf "$tmp"' EXIT
cd "$tmp"
fail() { echo "FAILED: $*"; tail -5 ./*.err 2>/dev/null; exit 1; }
"$RIPPLEKV_BUILD/make_tiny" tiny.gguf || fail "no tiny model"
"$RIPPLEKV_PYTHON" - >docs.jsonl <<'P'
import json, random
words = "river stone cloud seven lamp quiet market engine harbour letter winter copper".split()
r = random.Random(5)
for i in range(7):
    print(json.dumps({"id": f"doc-{i}", "text": " ".join(r.choice(words) for _ in range(200))}))
P
"$RIPPLEKV_BIN" profile --model tiny.gguf --calibration docs.jsonl --samples 3 --context 96 --response 8 \
    --threads 1 --output s.h5 >/dev/null 2>profile.err || fail "profile"
cat >sweep.txt <<'S'
# name: options
uniform:   --ratio 0.5 --window 8
ripple:    --ratio 0.5 --window 8 --sensitivity s.h5   # by sensitivity
streaming: --budget 40 --policy streaming --window 8
pyramid:   --ratio 0.5 --window 8 --allocator pyramid --beta 4
whole:
S
launch() { # P COMMAND...: alone for 0
    local p=$1
    shift
    if [ "$p" = 0 ]; then "$@"; else "$MPIRUN" -n "$p" "$@"; fi
}
evaluate() { # NAME P TASK EXTRA...
    local name=$1 p=$2 task=$3
    shift 3
    launch "$p" "$RIPPLEKV_BIN" eval "$task" --model tiny.gguf --input docs.jsonl --context 96 --response 8 \
        --threads "${threads:-1}" --output "$tmp/$name.jsonl" --json "$@" >"$name.json" 2>"$name.err"
}
evaluate one 0 fidelity --sweep sweep.txt || fail "fidelity: $?"
[ "$(wc -l <one.jsonl)" = 7 ] || fail "records"
for p in 1 2 3; do
    evaluate "p$p" "$p" fidelity --sweep sweep.txt || fail "$p ranks: $?"
    cmp one.jsonl "p$p.jsonl" || fail "$p ranks differ"
done
evaluate r2 2 fidelity --sweep sweep.txt --replicas 2 || fail "two replicas: $?"
cmp one.jsonl r2.jsonl || fail "replicas differ"
evaluate r4 4 fidelity --sweep sweep.txt --replicas 2 --chunk 17 || fail "replicas of two stages: $?"
cmp one.jsonl r4.jsonl || fail "replicas of two stages differ"
threads=2 evaluate t2 0 fidelity --sweep sweep.txt --chunk 40 || fail "two threads: $?"
cmp one.jsonl t2.jsonl || fail "two threads differ"
[ -z "$(find . -name '*.part.*' -o -name '*.tmp.*')" ] || fail "journals left behind"

# alone as in the sweep
evaluate alone 0 fidelity --ratio 0.5 --window 8 --sensitivity s.h5 || fail "alone: $?"
evaluate perplexity 0 perplexity --ratio 0.5 --window 8 || fail "perplexity: $?"
evaluate damage 2 damage --window 8 --levels 0.2,0.5 --sensitivity s.h5 || fail "damage: $?"
evaluate damage1 0 damage --window 8 --levels 0.2,0.5 --sensitivity s.h5 --chunk 33 || fail "damage: $?"
cmp damage.jsonl damage1.jsonl || fail "damage differs between ranks"
"$RIPPLEKV_PYTHON" - <<'P' || fail "numbers"
import json, math
d = json.load(open("one.json"))
names = [c["name"] for c in d["configurations"]]
assert names == ["uniform", "ripple", "streaming", "pyramid", "whole"], names
by = dict(zip(names, d["configurations"]))
whole = by["whole"]
assert whole["kl"] == 0 and whole["agreement"] == 1 and whole["kept_share"] == 1, whole
assert math.isclose(whole["perplexity"], d["reference_perplexity"]), d
for n in names[:4]:
    assert by[n]["kl"] > 1e-6 and by[n]["agreement"] <= 1 and 0.3 < by[n]["kept_share"] < 0.55, by[n]
for n in ("uniform", "ripple", "pyramid"):  # the same total
    assert abs(by[n]["kept_share"] - 0.5) < 0.01 and by[n]["kv_bytes"] == by["uniform"]["kv_bytes"], by[n]
assert len(d["per_document"]) == 7 and d["per_document"][3]["id"] == "doc-3"
alone = json.load(open("alone.json"))
assert alone["kl"] == by["ripple"]["kl"] and len(alone["configurations"]) == 1
assert [p["kl"] for p in alone["per_document"]] == [p["kl_of_each"][1] for p in d["per_document"]]
assert json.load(open("perplexity.json"))["perplexity"] == by["uniform"]["perplexity"]
dmg = json.load(open("damage.json"))
assert len(dmg["levels"]) == 2 and len(dmg["damage"]) == len(dmg["levels"][0]["damage"]) > 1
low, high = dmg["levels"]
assert low["sum"] > high["sum"] > 0 and low["joint"] > 0, dmg
for key in ("spearman_sensitivity", "spearman_depth"):
    lo, hi = dmg[key + "_ci"]
    assert -1 <= lo <= hi <= 1 and -1 <= dmg[key] <= 1, dmg
mean = [(a + b) / 2 for a, b in zip(low["damage"], high["damage"])]
assert all(math.isclose(a, b) for a, b in zip(mean, dmg["damage"]))
P

# a torn journal, of two replicas, resumed by one rank; and one of another job
evaluate stop 2 fidelity --sweep sweep.txt --replicas 2 & job=$!
for _ in $(seq 600); do
    [ "$(cat stop.jsonl.part.* 2>/dev/null | wc -l)" -gt 3 ] && break
    sleep 0.01
done
pkill -KILL -f "$tmp/stop.jsonl" ; wait $job
[ -s stop.jsonl ] || { printf '{"item":5,"to' >>stop.jsonl.part.1; }
evaluate stop 1 fidelity --sweep sweep.txt --resume || fail "resume: $?"
cmp one.jsonl stop.jsonl || fail "resumed records differ"
"$RIPPLEKV_PYTHON" -c 'print("{\"job\":\"0123456789abcdef\"}")' >other.jsonl.part.0
evaluate other 0 fidelity --sweep sweep.txt --resume
[ $? = 2 ] && grep -q "journal of another job" other.err || fail "another job's journal was taken"

# mistakes: one line that names the thing, and its code
wrong() { # CODE PATTERN ARGUMENTS...
    local code=$1 pattern=$2 rc
    shift 2
    "$RIPPLEKV_BIN" eval "$@" >wrong.out 2>wrong.err
    rc=$?
    [ $rc = "$code" ] || fail "eval $*: exit $rc, not $code"
    grep -q -- "$pattern" wrong.err || fail "eval $*: no \"$pattern\" in: $(tail -1 wrong.err)"
    [ ! -s wrong.out ] || fail "eval $*: something on stdout"
}
docs=(--model tiny.gguf --input docs.jsonl --context 96 --response 8)
wrong 2 "needs a TASK" --model tiny.gguf
wrong 2 "unknown task" nonsense "${docs[@]}" --ratio 0.5
wrong 2 "give --ratio, --budget or" fidelity "${docs[@]}"
wrong 2 "only eval damage reads it" fidelity "${docs[@]}" --ratio 0.5 --levels 0.1
wrong 2 "must ascend" damage "${docs[@]}" --levels 0.5,0.1
wrong 2 "cuts at --levels" damage "${docs[@]}" --ratio 0.1
wrong 2 "there is no --output" fidelity "${docs[@]}" --ratio 0.5 --resume
wrong 4 "cannot open" fidelity "${docs[@]}" --sweep nowhere.txt
wrong 4 "cannot open" fidelity --model tiny.gguf --input nowhere.jsonl --ratio 0.5
printf 'a: --ratio 0.5\na: --ratio 0.2\n' >twice.txt
wrong 4 "twice.txt line 2" fidelity "${docs[@]}" --sweep twice.txt
printf '\n--ratio 0.5\n' >noname.txt
wrong 4 "noname.txt line 2" fidelity "${docs[@]}" --sweep noname.txt
printf 'a: --ratio 7\n' >ratio.txt
wrong 2 "ratio.txt line 1: --ratio 7" fidelity "${docs[@]}" --sweep ratio.txt
printf 'a: --ratio 0.5 --threads 2\n' >run.txt
wrong 2 "option of the whole run" fidelity "${docs[@]}" --sweep run.txt
printf '# nothing\n' >empty.txt
wrong 4 "holds no configuration" fidelity "${docs[@]}" --sweep empty.txt

# LongBench: a checkout and data of the user's
mkdir -p bench/LongBench/config data
"$RIPPLEKV_PYTHON" - <<'P'
import json
names = ("trec", "samsum", "lcc", "qasper")
json.dump({n: "Read: {context}\nNow: {input}" if n != "lcc" else "{context}" for n in names},
          open("bench/LongBench/config/dataset2prompt.json", "w"))
json.dump({n: 5 for n in names}, open("bench/LongBench/config/dataset2maxlen.json", "w"))
for n in names:
    with open(f"data/{n}.jsonl", "w") as f:
        for i in range(3):
            print(json.dumps({"input": f"what {{context}} {i}", "context": "some words to read " * (9 + 20 * i), "_id": f"{n}{i}",
                              "answers": ["some", "none"], "length": 9, "dataset": n, "language": "en",
                              "all_classes": ["some", "none"] if n == "trec" else None}), file=f)
P
answer() { # NAME P EXTRA...
    local name=$1 p=$2
    shift 2
    launch "$p" "$RIPPLEKV_BIN" eval longbench --model tiny.gguf --longbench bench --data data --datasets trec,samsum,lcc,qasper \
        --max-prompt 200 --sweep sweep.txt --threads 1 --output "$tmp/$name.jsonl" --predictions "$name.pred" --json "$@" \
        >"$name.json" 2>"$name.err" || fail "longbench $name: $?"
}
answer lb0 0
answer lb2 2
answer lbr 2 --replicas 2
for n in lb2 lbr; do
    cmp lb0.jsonl $n.jsonl || fail "longbench: $n differs"
    diff -r lb0.pred $n.pred || fail "longbench: predictions of $n differ"
done
grep -q "were cut in the middle" lb0.err || fail "longbench: silent about cut prompts"
"$RIPPLEKV_PYTHON" - <<'P' || fail "longbench numbers"
import json
d = json.load(open("lb0.json"))
assert [x["name"] for x in d["datasets"]] == ["trec", "samsum", "lcc", "qasper"]
assert all(x["samples"] == 3 and 1 <= x["truncated"] < 3 for x in d["datasets"]), d["datasets"]
assert len(d["configurations"]) == 5
for c in d["configurations"]:
    s = c["scores"]
    assert abs(c["mean_of_datasets"] - sum(s.values()) / 4) < 1e-9, c
    assert abs(c["mean_of_categories"] - ((s["trec"] + s["samsum"]) / 2 + s["lcc"] + s["qasper"]) / 3) < 1e-9, c
lines = [json.loads(x) for x in open("lb0.pred/whole/trec.jsonl")]
assert len(lines) == 3 and set(lines[0]) == {"pred", "answers", "all_classes", "length"}, lines[0]
P
lb=(longbench --model tiny.gguf --longbench bench --data data)
wrong 2 "needs --longbench, --data and --datasets" "${lb[@]}"
wrong 2 "is no dataset" "${lb[@]}" --datasets trec,treck
wrong 4 "cannot open" "${lb[@]}" --datasets hotpotqa
wrong 4 "give a checkout" longbench --model tiny.gguf --longbench data --data data --datasets trec
printf '{"input": "a", "context": 3}\n' >data/musique.jsonl
wrong 4 "musique.jsonl line 1: .context. must be a string" "${lb[@]}" --datasets musique
wrong 2 "only eval longbench reads it" fidelity "${docs[@]}" --ratio 0.5 --datasets trec
# tasks that the program builds
synth() { # NAME P TASK EXTRA...
    local name=$1 p=$2 task=$3
    shift 3
    launch "$p" "$RIPPLEKV_BIN" eval "$task" --model tiny.gguf --samples 3 --sweep sweep.txt --threads 1 \
        --output "$tmp/$name.jsonl" --json "$@" >"$name.json" 2>"$name.err" || fail "$task $name: $?"
}
synth n0 0 needle --context 480
synth n2 2 needle --context 480 --replicas 2
cmp n0.jsonl n2.jsonl || fail "needle differs"
synth r0 0 ruler --context 520 --tasks niah_single_1,niah_multikey_1
synth r3 3 ruler --context 520 --tasks niah_single_1,niah_multikey_1
cmp r0.jsonl r3.jsonl || fail "ruler differs"
[ "$(wc -l <r0.jsonl)" = 6 ] || fail "ruler: records"
wrong 2 "it needs" ruler --model tiny.gguf --context 60 --tasks vt
wrong 2 "no task of RULER is so short" ruler --model tiny.gguf --context 60
wrong 2 "is no task of RULER" ruler --model tiny.gguf --tasks vt,needle
wrong 2 "only eval ruler reads it" needle --model tiny.gguf --tasks vt
wrong 2 "the program makes the prompts" needle --model tiny.gguf --input docs.jsonl
wrong 4 "cannot open" needle --model tiny.gguf --haystack nowhere.txt
echo "same records"
