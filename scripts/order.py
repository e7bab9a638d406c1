#!/usr/bin/env python3
"""The order of samples, computed from docs/order.md alone: order.py RUN

RUN is a JSON file:

    {"parts": [{"share": 1, "segments": [rows of each segment]}], "shuffle": "window(4)", "seed": 0, "epochs": 1,
     "batch": 256, "world": 1, "ending": "pad", "layout": "segment", "first_position": 0}

Everything but `parts`, which has one entry unless the dataset is a mix, may be left out; the values above are what it is then.
Prints JSON: for each epoch, for each rank, its order digest and its steps, of which each is a list of [position, row]; the
position of padding is null. `first_position` is where the first epoch begins. Shares no code with Forebay.
"""

import itertools
import json
import math
import pathlib
import sys

import xxhash

MASK = (1 << 64) - 1
BLOCK_MAX = 1000
DEFAULTS = {
    "shuffle": "window(4)",
    "seed": 0,
    "epochs": 1,
    "batch": 256,
    "world": 1,
    "ending": "pad",
    "layout": "segment",
    "first_position": 0,
}


def hi(a, b):
    return a * b >> 64


def up(a, b):
    """The quotient, rounded up."""
    return -(-a // b)


def little(number):
    return number.to_bytes(8, "little")


def split_mix_64(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        x = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        yield x ^ (x >> 31)


def key(*numbers):
    return xxhash.xxh3_64_intdigest(b"FBPLAN01" + b"".join(map(little, numbers)))


def permutation(n, of_key):
    """Where each of 0 .. n - 1 goes."""
    a = math.isqrt(n - 1) + 1 if n else 1
    b = up(n, a)
    keys = list(itertools.islice(split_mix_64(of_key), 8))

    def f(k, v):
        m = (v ^ k) * 0x9E3779B97F4A7C15 & MASK
        return (m ^ (m >> 32)) * 0xD6E8FEB86659FD93 & MASK

    def rounds(x):
        r, l = divmod(x, a)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            l = (l + hi(f(even, r), a)) % a
            r = (r + hi(f(odd, l), b)) % b
        return l + a * r

    for x in range(n):
        x = rounds(x)
        while x >= n:
            x = rounds(x)
        yield x


def order_of_one(segments, shuffle, seed, epoch):
    """The rows of an epoch of one dataset, by position."""
    firsts = [0, *itertools.accumulate(segments)]
    rows = [range(first, first + count) for first, count in zip(firsts, segments)]
    if shuffle == "none":
        return [row for segment in rows for row in segment]
    sequence = list(range(len(segments)))
    chance = split_mix_64(key(seed, epoch, 0, 0))
    for i in range(len(segments) - 1, 0, -1):
        j = hi(next(chance), i + 1)
        sequence[i], sequence[j] = sequence[j], sequence[i]
    width = max(len(segments), 1) if shuffle == "full" else int(shuffle.removeprefix("window(").removesuffix(")"))
    order = []
    for k, first in enumerate(range(0, len(sequence), width)):
        window = [row for segment in sequence[first : first + width] for row in rows[segment]]
        order += [window[y] for y in permutation(len(window), key(seed, epoch, 1, k))]
    return order


def places(shares):
    """How many places of a block each part of a mix has."""
    total = sum(shares)
    for block in range(1, BLOCK_MAX + 1):
        exact = [share / total * block for share in shares]
        if all(e > 0.5 and abs(e - round(e)) < 1e-6 for e in exact):
            return [round(e) for e in exact]
    found = [max(math.floor(e), 1) for e in exact]
    by_fraction = sorted(range(len(shares)), key=lambda d: (-math.modf(exact[d])[0], d))
    for d in itertools.islice(itertools.cycle(by_fraction), max(BLOCK_MAX - sum(found), 0)):
        found[d] += 1
    return found


def order_of_mix(parts, shuffle, seed, epoch):
    own = places([part["share"] for part in parts])
    rows = [sum(part["segments"]) for part in parts]
    firsts = [0, *itertools.accumulate(rows)]
    # Of each place, the part and its number among the part's.
    block = [(d, j) for d, count in enumerate(own) for j in range(count)]
    blocks = max(1, min(n // count for n, count in zip(rows, own, strict=True)))
    orders = {}
    order = []
    for k in range(blocks):
        for y in permutation(len(block), key(seed, epoch, 2, k)):
            d, j = block[y]
            of_epoch, position = divmod((epoch * blocks + k) * own[d] + j, rows[d])
            if (d, of_epoch) not in orders:
                orders[d, of_epoch] = order_of_one(parts[d]["segments"], shuffle, key(seed, 0, 3, d), of_epoch)
            order.append(firsts[d] + orders[d, of_epoch][position])
    return order


def steps_of(order, segment_of, run, first, rank):
    """A rank's slots of each step, as (position, row)."""
    batch, world, n = run["batch"], run["world"], len(order)
    left = n - first
    for step in range(left // batch if run["ending"] == "drop" else up(left, batch)):
        begin = first + step * batch
        slots = up(min(batch, n - begin), world) if run["ending"] == "exact" else batch // world
        positions = range(begin + rank * slots, begin + (rank + 1) * slots)
        found = [(p if p < n else None, order[p if p < n else (p - n) % n]) for p in positions]
        yield found if run["layout"] == "position" else sorted(found, key=lambda slot: segment_of[slot[1]])


def digest(steps):
    pairs = (little(position) + little(row) for step in steps for position, row in step if position is not None)
    return f"{sum(map(xxhash.xxh3_128_intdigest, pairs)) % (1 << 128):032x}"


def main(path):
    run = {**DEFAULTS, **json.loads(pathlib.Path(path).read_text())}
    parts = run["parts"]
    segments = [count for part in parts for count in part["segments"]]
    segment_of = [number for number, count in enumerate(segments) for _ in range(count)]
    epochs = []
    for epoch in range(run["epochs"]):
        asked = run["shuffle"], run["seed"], epoch
        order = order_of_mix(parts, *asked) if len(parts) > 1 else order_of_one(segments, *asked)
        first = 0 if epoch else run["first_position"]
        ranks = [list(steps_of(order, segment_of, run, first, rank)) for rank in range(run["world"])]
        epochs.append([{"digest": digest(steps), "steps": steps} for steps in ranks])
    print(json.dumps(epochs))


if __name__ == "__main__":
    main(*sys.argv[1:])
