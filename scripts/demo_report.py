"""Text for scripts/demo: its JSON files as bars and a table of 96 columns."""
import json
import sys
import textwrap

WIDTH = 96


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read().strip()


def profile(path):
    result = json.loads(read(path))
    values = result["sensitivity"]
    top = max(values)
    for layer, value in enumerate(values):
        bar = "#" * (round(60 * value / top) if top > 0 else 0)
        print(f"  layer {layer:3d}  {value:9.2e}  {bar}")
    if "noise_floor" in result:
        print(f"Noise floor of the measurement: {result['noise_floor']:.1e} nats.")


def make_input(document, question):
    row = {"id": "demo", "document": read(document), "question": read(question)}
    print(json.dumps(row, ensure_ascii=False))


def row_of(path):
    return json.loads(read(path).splitlines()[0])


def human(n_bytes):
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


def speed(row):
    steps = row["new_tokens"] - 1  # the first token comes from the prompt's pass
    if steps < 1 or row["decode_s"] <= 0:
        return "-"
    return f"{steps / row['decode_s']:.1f}"


def compare(full_path, small_path, question, answer, ratio):
    full, small = row_of(full_path), row_of(small_path)
    print(textwrap.fill("Question: " + read(question), WIDTH))
    print(textwrap.fill("The document says: " + read(answer), WIDTH))
    print()
    label, column = 28, (WIDTH - 28 - 2) // 2
    rule = "-" * WIDTH

    def line(name, left, right):
        lefts = textwrap.wrap(left, column) or [""]
        rights = textwrap.wrap(right, column) or [""]
        names = textwrap.wrap(name, label - 1)
        for i in range(max(len(lefts), len(rights), len(names))):
            cells = [c[i] if i < len(c) else "" for c in (names, lefts, rights)]
            print(f"{cells[0]:{label}}{cells[1]:{column}}  {cells[2]}".rstrip())

    line("", "full cache", f"{float(ratio):g} of it, split by sensitivity")
    print(rule)
    line("answer", *(" ".join(r["text"].split()) for r in (full, small)))
    print(rule)
    line("prompt, tokens", *(str(r["prompt_tokens"]) for r in (full, small)))
    line("answer, tokens", *(str(r["new_tokens"]) for r in (full, small)))
    line("cached tokens per layer: mean (least - most)", *(
        f"{sum(k) / len(k):.0f} ({min(k)} - {max(k)})" for k in (full["kv_tokens"], small["kv_tokens"])))
    line("cache after the prompt", *(human(r["kv_bytes"]) for r in (full, small)))
    line("first token after, s", *(f"{r['ttft_s']:.2f}" for r in (full, small)))
    line("speed after that, tokens/s", *(speed(r) for r in (full, small)))
    print(rule)


def main():
    command, *args = sys.argv[1:]
    if command == "profile":
        profile(*args)
    elif command == "input":
        make_input(*args)
    elif command == "tokens":
        print(row_of(*args)["prompt_tokens"])
    elif command == "compare":
        compare(*args)
    else:
        sys.exit(f"unknown report {command}")


main()
