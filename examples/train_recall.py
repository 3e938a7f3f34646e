#!/usr/bin/env python3
"""Trains the tiny model of the recall example, or evaluates a checkpoint.

    python3 examples/train_recall.py                       five minutes of one core
    python3 examples/train_recall.py --evaluate examples/recall_model.bin

The task: a prompt is BOS, then filler noise in which facts `key v1 v2 v3` are hidden, then
`QUERY key`; the answer is v1 v2 v3. A two-layer Llama-style transformer learns it from a curriculum
of growing lengths. The same seed gives the same weights on the same PyTorch and processor.

Needs PyTorch and numpy (Debian: python3-torch, python3-numpy, and libopenblas0-pthread, without
which Debian's PyTorch multiplies matrices seven times slower). Nothing else of the project needs
them: the weights are committed as examples/recall_model.bin, in the llama2.c checkpoint format.
"""
import argparse
import math
import os
import struct
import sys
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")    # before numpy and torch load their libraries

import numpy as np
import torch
import torch.nn.functional as F

# ---- the task ------------------------------------------------------------------------------------

BOS, QUERY = 0, 1
KEYS = np.arange(2, 34)
VALUES = np.arange(34, 50)
FILLER = np.arange(50, 96)
VOCAB = 96
N_VALUES = 3                    # values of a fact
FACT = 1 + N_VALUES             # tokens of a fact
ASK = 2 + N_VALUES              # tokens of a question with its answer: QUERY key v1 v2 v3


def jump_positions(rng, n_tokens, breakable, limit):
    """Positions 0, 1, 2, ... with a few random jumps, up to `limit`: a short sequence then shows
    the model the distances of a long one. Jumps happen only where `breakable` is true."""
    slack = limit - n_tokens
    jumps = np.zeros(n_tokens, dtype=np.int64)
    n_jumps = int(rng.integers(0, 5))
    places = np.flatnonzero(breakable)
    if slack > 0 and n_jumps > 0:
        total = int(rng.integers(0, slack + 1))
        shares = np.diff(np.concatenate(
            ([0], np.sort(rng.integers(0, total + 1, n_jumps - 1)), [total])))
        np.add.at(jumps, rng.choice(places, n_jumps), shares)
    return np.arange(n_tokens) + np.cumsum(jumps)


def recall_batch(rng, batch, length, n_facts, n_queries, limit):
    """A batch of prompts of `length` tokens with `n_facts` facts, followed by `n_queries` questions
    with their answers. Returns tokens and positions [batch, n] and the rows [batch, n_asked] whose
    next token is an answer."""
    n = length + ASK * n_queries
    tokens = rng.choice(FILLER, (batch, n))
    positions = np.empty((batch, n), dtype=np.int64)
    rows = (length + ASK * np.arange(n_queries)[:, None] + 1 + np.arange(N_VALUES)).reshape(-1)
    for b in range(batch):
        tokens[b, 0] = BOS
        keys = rng.permutation(KEYS)[:n_facts]
        values = rng.choice(VALUES, (n_facts, N_VALUES))
        # A fact counts as one unit, so every arrangement that fits is equally likely.
        units = np.sort(rng.permutation(length - 1 - N_VALUES * n_facts)[:n_facts])
        starts = 1 + units + N_VALUES * np.arange(n_facts)
        breakable = np.ones(n, dtype=bool)
        breakable[0] = False
        for start, key, value in zip(starts, keys, values):
            tokens[b, start] = key
            tokens[b, start + 1:start + FACT] = value
            breakable[start + 1:start + FACT] = False
        for i, fact in enumerate(rng.permutation(n_facts)[:n_queries]):
            start = length + ASK * i
            tokens[b, start:start + 2] = QUERY, keys[fact]
            tokens[b, start + 2:start + ASK] = values[fact]
            breakable[start + 1:start + ASK] = False
        positions[b] = jump_positions(rng, n, breakable, limit)
    return tokens, positions, np.tile(rows, (batch, 1))


def copy_batch(rng, batch, n_copied):
    """The warm-up: distinct tokens in random order, twice, with noise of random length before and
    between. It teaches the model to look for the earlier occurrence of a token and to read what
    followed. Without the noise it learns a fixed distance instead, which is of no use later."""
    n = 1 + 3 * n_copied
    tokens = rng.choice(FILLER, (batch, n))
    tokens[:, 0] = BOS
    rows = np.empty((batch, n_copied - 1), dtype=np.int64)
    for b in range(batch):
        copied = rng.permutation(np.concatenate((KEYS, VALUES)))[:n_copied]
        between = int(rng.integers(0, n_copied))
        first = 1 + int(rng.integers(0, n_copied - between))
        second = first + n_copied + between
        tokens[b, first:first + n_copied] = copied
        tokens[b, second:second + n_copied] = copied
        rows[b] = second + np.arange(n_copied - 1)
    return tokens, np.tile(np.arange(n), (batch, 1)), rows


# ---- the model -----------------------------------------------------------------------------------

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS = 128, 96, 2, 4, 2
HEAD_DIM = DIM // HEADS
SEQ_LEN = 1152                  # positions in the format's RoPE tables
THETA, EPS = 1e4, 1e-5

# The weights in the order of the checkpoint format.
SHAPES = {
    "embedding": (VOCAB, DIM),
    "rms_att": (LAYERS, DIM),
    "wq": (LAYERS, DIM, DIM),
    "wk": (LAYERS, KV_HEADS * HEAD_DIM, DIM),
    "wv": (LAYERS, KV_HEADS * HEAD_DIM, DIM),
    "wo": (LAYERS, DIM, DIM),
    "rms_ffn": (LAYERS, DIM),
    "w1": (LAYERS, HIDDEN, DIM),
    "w2": (LAYERS, DIM, HIDDEN),
    "w3": (LAYERS, HIDDEN, DIM),
    "rms_final": (DIM,),
}
HEADER = (DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQ_LEN)


def rope_tables():
    frequency = THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = np.arange(SEQ_LEN)[:, None] * frequency
    return np.cos(angle).astype("<f4"), np.sin(angle).astype("<f4")


COS, SIN = (torch.from_numpy(t) for t in rope_tables())


def new_weights(seed):
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in SHAPES.items():
        if name.startswith("rms"):
            w = torch.ones(shape)
        else:
            # About 1 / sqrt(3 dim), PyTorch's own choice; the usual 0.02 learned far more slowly.
            w = torch.randn(shape, generator=generator) * 0.05
        weights[name] = w.requires_grad_()
    return weights


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x, positions):
    """x [batch, n, heads, head_dim]: rotates the interleaved pairs by their positions."""
    cos, sin = COS[positions][:, :, None], SIN[positions][:, :, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def forward(weights, tokens, positions, rows):
    """Logits [batch, n_rows, vocab] of the asked rows. The last layer computes only those."""
    batch, n = tokens.shape
    x = weights["embedding"][tokens]
    index = torch.arange(n)[None].expand(batch, n)
    for layer in range(LAYERS):
        h = rms_norm(x, weights["rms_att"][layer])
        k = (h @ weights["wk"][layer].T).view(batch, n, KV_HEADS, HEAD_DIM)
        v = (h @ weights["wv"][layer].T).view(batch, n, KV_HEADS, HEAD_DIM)
        k = rotate(k, positions)
        asked, asked_positions = index, positions
        if layer == LAYERS - 1:
            asked, asked_positions = rows, positions.gather(1, rows)
            take = rows[..., None].expand(-1, -1, DIM)
            x, h = x.gather(1, take), h.gather(1, take)
        q = (h @ weights["wq"][layer].T).view(batch, -1, HEADS, HEAD_DIM)
        q = rotate(q, asked_positions)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        group = HEADS // KV_HEADS
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        logits = (q @ k.transpose(-1, -2)) * HEAD_DIM ** -0.5
        hidden = index[:, None, None, :] > asked[:, None, :, None]
        attended = logits.masked_fill(hidden, -math.inf).softmax(-1) @ v
        x = x + attended.transpose(1, 2).flatten(-2) @ weights["wo"][layer].T
        h = rms_norm(x, weights["rms_ffn"][layer])
        gate = F.silu(h @ weights["w1"][layer].T) * (h @ weights["w3"][layer].T)
        x = x + gate @ weights["w2"][layer].T
    return rms_norm(x, weights["rms_final"]) @ weights["embedding"].T


def run_batch(weights, batch):
    """Loss, and for every asked row whether the most likely token is the right one."""
    tokens, positions, rows = (torch.from_numpy(np.ascontiguousarray(a)) for a in batch)
    targets = tokens.gather(1, rows + 1)
    logits = forward(weights, tokens, positions, rows)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss, logits.argmax(-1) == targets


# ---- the checkpoint ------------------------------------------------------------------------------

def save(weights, path):
    with open(path, "wb") as f:
        f.write(struct.pack("<7i", *HEADER))
        for name in SHAPES:
            f.write(weights[name].detach().numpy().astype("<f4").tobytes())
        for table in (COS, SIN):
            f.write(table.numpy().astype("<f4").tobytes())


def load(path):
    with open(path, "rb") as f:
        data = f.read()
    n_floats = sum(math.prod(s) for s in SHAPES.values()) + SEQ_LEN * HEAD_DIM
    if len(data) != 28 + 4 * n_floats or struct.unpack("<7i", data[:28]) != HEADER:
        raise ValueError("not a checkpoint of this model's shape")
    floats = torch.from_numpy(np.frombuffer(data, "<f4", offset=28).copy())
    weights, start = {}, 0
    for name, shape in SHAPES.items():
        weights[name] = floats[start:start + math.prod(shape)].view(shape)
        start += math.prod(shape)
    return weights


def evaluate(weights, seed, n, length, n_facts):
    """Share of exact answers, one question a prompt, prompts of `length` tokens in all. The right
    tokens are fed back, which is the same as greedy decoding: all three must be right."""
    rng = np.random.default_rng(seed)
    exact = 0
    with torch.no_grad():
        for _ in range(n):
            _, right = run_batch(weights, recall_batch(rng, 1, length - 2, n_facts, 1, 0))
            exact += bool(right.all())
    return exact / n


# ---- the training --------------------------------------------------------------------------------

LR, WARMUP_STEPS, PASS = 2e-3, 100, 0.90
STAGES = [(48, 4, 3, 64), (96, 8, 6, 32), (192, 12, 8, 16), (384, 16, 10, 8)]
N_COPIED, MAX_FACTS, MAX_STEPS = 22, 16, 4000
MIXED_STEPS, MIXED_LENGTHS, MIXED_TOKENS = 1200, (72, 1060), 3200
POSITION_LIMIT = 1150           # no position beyond this is ever seen in training


class Trainer:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.weights = new_weights(seed)
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=LR, betas=(0.9, 0.98),
                                           weight_decay=0.01)
        self.steps, self.start = 0, time.time()

    def step(self, batch, lr):
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = lr * min(1.0, self.steps / WARMUP_STEPS)
        loss, right = run_batch(self.weights, batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        self.optimizer.step()
        return loss.item(), right

    def report(self, name, step, loss, running):
        print(f"{time.time() - self.start:6.0f} s  step {self.steps:5d}  {name:24s} "
              f"{step:5d}  loss {loss:6.3f}  right {100 * running:5.1f} %", flush=True)

    def until_passed(self, name, make_batch, measure, extra=None):
        """Trains on one kind of batch until the running accuracy passes; every other batch is
        `extra` when given. False if that does not happen."""
        running = 0.0
        for step in range(1, MAX_STEPS + 1):
            if extra is not None and step % 2 == 0:
                self.step(extra(), LR)
                continue
            loss, right = self.step(make_batch(), LR)
            running += 0.05 * (measure(right) - running)
            passed = running > PASS
            if passed or step % 100 == 99:
                self.report(name, step, loss, running)
            if passed:
                return True
        return False


def share_exact(right):
    return right.view(right.shape[0], -1, N_VALUES).all(-1).float().mean().item()


def train(seed):
    """The weights, or None if this seed stays on a plateau."""
    t = Trainer(seed)

    def copies():
        return copy_batch(t.rng, 64, N_COPIED)

    if not t.until_passed("copy", copies, lambda right: right.float().mean().item()):
        return None
    for i, (length, facts, queries, batch) in enumerate(STAGES):
        def prompts():
            return recall_batch(t.rng, batch, length, facts, queries, POSITION_LIMIT)
        if not t.until_passed(f"length {length}, facts {facts}", prompts, share_exact,
                              copies if i == 0 else None):
            return None
    running, (low, high) = 0.0, MIXED_LENGTHS
    for step in range(1, MIXED_STEPS + 1):
        # Log-uniform, so that short and long prompts get about the same number of steps.
        length = int(round(low * (high / low) ** t.rng.random()))
        facts = int(t.rng.integers(2, min(MAX_FACTS, length // 12) + 1))
        queries = min(facts, 10)
        batch = max(2, MIXED_TOKENS // (length + ASK * queries))
        lr = LR / 2 * 0.5 * (1 + math.cos(math.pi * step / MIXED_STEPS))
        loss, right = t.step(recall_batch(t.rng, batch, length, facts, queries, POSITION_LIMIT), lr)
        running += 0.02 * (share_exact(right) - running)
        if step % 100 == 0:
            t.report("mixed lengths", step, loss, running)
    print(f"trained in {time.time() - t.start:.0f} s")
    return t.weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="examples/recall_model.bin")
    parser.add_argument("--evaluate", metavar="CHECKPOINT", help="evaluate, don't train")
    parser.add_argument("--prompts", type=int, default=300, help="how many to evaluate on")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--facts", type=int, default=16)
    args = parser.parse_args()
    if not 1 <= args.facts <= len(KEYS):
        parser.error(f"--facts must be 1 to {len(KEYS)}")
    if not FACT * args.facts + 3 <= args.length <= SEQ_LEN - N_VALUES:
        parser.error(f"--length must hold the facts and be at most {SEQ_LEN - N_VALUES}")
    if args.prompts < 1:
        parser.error("--prompts must be at least 1")

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    if args.evaluate:
        try:
            weights = load(args.evaluate)
        except (OSError, ValueError) as error:
            sys.exit(f"{args.evaluate}: {error}")
    else:
        weights = train(args.seed)
        if weights is None:
            sys.exit(f"seed {args.seed} stays on a plateau; try another one")
        save(weights, args.output)
        print(f"wrote {args.output}")
    exact = evaluate(weights, 1000 + args.seed, args.prompts, args.length, args.facts)
    print(f"exact answers, full cache, length {args.length}, facts {args.facts}, "
          f"{args.prompts} prompts: {100 * exact:.1f} %")


if __name__ == "__main__":
    main()
