#!/usr/bin/env python3
"""same_profile.py A.h5 B.h5...: are all equal to the first, dataset by dataset and attribute by
attribute, to the byte? ranks, replicas, threads and command may differ. Exit: 0 equal, 1 not."""
import sys

import h5py

FREE = {"ranks", "replicas", "threads", "command"}


def contents(path):
    out = {}
    with h5py.File(path, "r") as f:
        def visit(name, obj):
            for key, value in obj.attrs.items():
                if not (name == "/" and key in FREE):
                    out[f"{name}@{key}"] = (str(obj.attrs.get_id(key).dtype), getattr(value, "shape", ()),
                                            value.tobytes() if hasattr(value, "tobytes") else value)
            if isinstance(obj, h5py.Dataset):
                out[name] = (str(obj.dtype), obj.shape, obj[()].tobytes())
        visit("/", f)
        f.visititems(visit)
    return out


def main(paths):
    first, bad = contents(paths[0]), 0
    for path in paths[1:]:
        other = contents(path)
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                print(f"{path}: {key} differs from {paths[0]}")
                bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
