#!/usr/bin/env python3
"""h5_schema.py FILE...: is each a sensitivity file as documented, seen through h5py?

Checks every dataset and attribute (type, shape, fixed-length strings, no object times) and that
the values agree with each other: NaN where a sample is not done, and sensitivity, its spread and
the sizes as the samples give them. One line per problem.
Exit: 0 all well, 1 a problem, 2 usage, 77 h5py is not installed.
"""
import re
import sys

try:
    import h5py
    import numpy as np
except ImportError:
    print("h5_schema.py: h5py is missing: pip install h5py, or apt-get install python3-h5py")
    sys.exit(77)

FORMAT, VERSION = "ripplekv-sensitivity", 1
TEXT, HEX = "text", "16 hex digits"

# Root attributes; epsilon is a list, all others are scalars.
ATTRIBUTES = {
    "format": TEXT, "format_version": "<i4", "model_name": TEXT, "model_shape_hash": HEX,
    "weights_hash": HEX, "n_layers": "<i4", "n_kv_heads": "<i4", "head_dim": "<i4",
    "epsilon": "<f8", "draws": "<i4", "seed": "<u8", "context": "<i8", "response": "<i8",
    "signal": TEXT, "calibration_hash": HEX, "backend": TEXT, "dtype": TEXT, "numerics": TEXT,
    "weights": TEXT, "noise_floor": "<f8", "ranks": "<i4", "replicas": "<i4", "threads": "<i4",
    "command": TEXT, "version": TEXT, "units": TEXT,
}
COMMAND_BYTES = 1024

# Datasets and the sizes of their dimensions; those of the second table only when measured.
DATASETS = {
    "sensitivity": ("<f8", "L"), "sensitivity_std": ("<f8", "L"), "samples/kl": ("<f8", "NEDL"),
    "samples/done": ("u1", "N"), "samples/prompt_tokens": ("<i4", "N"),
    "samples/hash": ("<u8", "N"),
}
OPTIONAL = {"local": ("<f8", "NL"), "attention/entropy": ("<f8", "NL"), "attention/variance": ("<f8", "NL"),
             "damage/kl": ("<f8", "NKL"), "damage/levels": ("<f8", "K")}


class Checker:
    def __init__(self, path):
        self.path, self.n_problems = path, 0

    def check(self, good, problem):
        if not good:
            self.n_problems += 1
            print(f"{self.path}: {problem}")
        return good

    def attribute(self, f, name, kind):
        """The value of a root attribute; None if it is not as documented."""
        if not self.check(name in f.attrs, f"attribute {name} is missing"):
            return None
        a = h5py.h5a.open(f.id, name.encode())
        kind_id, shape = a.get_type(), a.shape
        if not self.check(len(shape) == (name == "epsilon"), f"attribute {name}: shape {shape}"):
            return None
        if kind not in (TEXT, HEX):
            good = self.check(kind_id.dtype == np.dtype(kind),
                              f"attribute {name}: type {kind_id.dtype}, not {kind}")
            return f.attrs[name] if good else None
        fixed = isinstance(kind_id, h5py.h5t.TypeStringID) and not kind_id.is_variable_str()
        if not self.check(fixed, f"attribute {name}: not a string of fixed length"):
            return None
        raw = f.attrs[name]
        try:
            value = raw.decode() if isinstance(raw, bytes) else str(raw)
        except UnicodeDecodeError:
            self.check(False, f"attribute {name}: not UTF-8")
            return None
        if kind == HEX:
            self.check(re.fullmatch("[0-9a-f]{16}", value), f"attribute {name}: {value!r}")
        if name == "command":
            self.check(kind_id.get_size() == COMMAND_BYTES,
                       f"attribute command: {kind_id.get_size()} bytes, not {COMMAND_BYTES}")
        return value

    def dataset(self, f, name, kind, dims, sizes):
        """The values of a dataset; None if it is not as documented."""
        if not self.check(isinstance(f.get(name), h5py.Dataset), f"dataset /{name} is missing"):
            return None
        d = f[name]
        for letter, n in zip(dims, d.shape):
            sizes.setdefault(letter, n)
        want = tuple(sizes.get(letter) for letter in dims)
        good = self.check(d.dtype == np.dtype(kind), f"/{name}: type {d.dtype}, not {kind}")
        good &= self.check(d.shape == want, f"/{name}: shape {d.shape}, not {want} = [{dims}]")
        self.check(not d.id.get_create_plist().get_obj_track_times(), f"/{name}: holds times")
        return d[()] if good else None

    def values(self, attrs, data):
        done = data["samples/done"].astype(bool)
        self.check(np.isin(data["samples/done"], (0, 1)).all(), "/samples/done: not 0 or 1")
        kl = data["samples/kl"]
        self.check(not np.isnan(kl[done]).any(), "/samples/kl: NaN in a sample that is done")
        self.check((kl[done] > -1e-9).all(), "/samples/kl: negative")
        self.check((data["samples/prompt_tokens"][done] > 0).all(), "/samples/prompt_tokens: < 1")
        if self.check(done.any(), "/samples/done: no sample is done"):
            per_sample = kl[done, 0].mean(axis=1)
            std = per_sample.std(axis=0, ddof=1) if done.sum() > 1 else 0 * per_sample[0]
            scale = np.abs(per_sample).max()
            self.check(np.allclose(data["sensitivity"], per_sample.mean(axis=0), 1e-12, 1e-300),
                       "/sensitivity: not the mean over done samples at the first epsilon")
            self.check(np.allclose(data["sensitivity_std"], std, 1e-9, 1e-12 * scale),
                       "/sensitivity_std: not the deviation over done samples")
        self.check((attrs["epsilon"] > 0).all(), "attribute epsilon: not positive")
        for name in ("n_kv_heads", "head_dim", "context", "response", "ranks", "replicas",
                     "threads"):
            self.check(attrs[name] >= 1, f"attribute {name}: {attrs[name]}")

    def file(self, f):
        attrs = {name: self.attribute(f, name, kind) for name, kind in ATTRIBUTES.items()}
        for name, want in (("format", FORMAT), ("format_version", VERSION), ("units", "nats")):
            self.check(attrs[name] == want, f"attribute {name}: {attrs[name]!r}, not {want!r}")
        if self.n_problems:
            return
        sizes = {"L": int(attrs["n_layers"]), "D": int(attrs["draws"]),
                 "E": len(attrs["epsilon"])}
        tables = dict(DATASETS, **{k: v for k, v in OPTIONAL.items() if k in f})
        data = {k: self.dataset(f, k, *v, sizes) for k, v in tables.items()}
        found = []
        f.visit(lambda name: found.append(name) if isinstance(f[name], h5py.Dataset) else None)
        for name in sorted(set(found) - set(tables)):
            self.check(False, f"/{name}: not documented")
        for name in sorted(set(f.attrs) - set(ATTRIBUTES)):
            self.check(False, f"attribute {name}: not documented")
        if not self.n_problems:
            self.values(attrs, data)


def main(paths):
    if not paths or paths[0].startswith("-"):
        print(__doc__)
        return 2
    n_problems = 0
    for path in paths:
        c = Checker(path)
        try:
            with h5py.File(path, "r") as f:
                c.file(f)
        except OSError as e:
            c.check(False, f"cannot be read: {e}")
        n_problems += c.n_problems
        if not c.n_problems:
            print(f"{path}: as documented")
    return 1 if n_problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
