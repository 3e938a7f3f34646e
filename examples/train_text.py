#!/usr/bin/env python3
"""Trains the text model of the examples, or evaluates a checkpoint.

    python3 examples/train_text.py                       one core, under twenty minutes
    python3 examples/train_text.py --evaluate            the committed model, half a minute

The text is the King James Bible, which is in the public domain, as Debian's package bible-kjv
prints it: a line for each verse. The books of Ruth, Esther and Jonah are never trained on: they are
what the examples read (examples/text_unseen.txt), and their names are known from the prompt alone.

Three files come out: the checkpoint in llama2.c's format, its vocabulary in llama2.c's tokenizer
format, and the unseen books. The same seed gives the same bytes on the same PyTorch and processor.

Needs PyTorch, numpy and the text (Debian: python3-torch, python3-numpy, libopenblas0-pthread,
bible-kjv). Nothing else of the project needs them: what it writes is committed.
"""
import argparse
import collections
import math
import os
import re
import struct
import subprocess
import sys
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")    # before numpy and torch load their libraries

import numpy as np
import torch
import torch.nn.functional as F

# ---- the text ------------------------------------------------------------------------------------

UNSEEN = ("Ruth", "Est", "Jonah")   # as the program `bible` abbreviates them


def read_books(program):
    """The text of each book in order, a line for each verse."""
    command = [program, "-f", "Gen1:1-Rev22:21"]
    printed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    books = collections.OrderedDict()
    for line in printed.stdout.decode("ascii").splitlines():
        match = re.fullmatch(r"(\w+?)(\d+):(\d+) (.+?) *", line)
        if match is None:
            raise ValueError(f"not a verse: {line!r}")
        books.setdefault(match[1], []).append(match[4] + "\n")
    if len(books) != 66 or sum(map(len, books.values())) != 31102:
        raise ValueError("not the 66 books with their 31102 verses")
    return {name: "".join(verses) for name, verses in books.items()}


# ---- the vocabulary ------------------------------------------------------------------------------

VOCAB = 512
BEGIN, FIRST_BYTE, FIRST_PIECE = 1, 3, 259     # llama2.c: unknown, begin, end, 256 bytes, pieces
WORD = re.compile(r" ?[A-Za-z]+| ?[^A-Za-z\s]+|\s")


def train_pieces(text):
    """Byte-pair encoding: every character, then again and again the most frequent pair of
    neighbours. No pair crosses the end of a word, a word has the space before it, and the first of
    equals is the lowest: nothing here depends on chance. The pieces, and the score of each: one
    with a higher score is joined first."""
    words = collections.Counter(WORD.findall(text))
    split = {word: tuple(word) for word in words}
    pieces = sorted(set(text))
    scores = [0.0] * len(pieces)
    while FIRST_PIECE + len(pieces) < VOCAB:
        pairs = collections.Counter()
        for word, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        for word, parts in split.items():
            if best[0] in parts:
                split[word] = join(parts, best)
        if best[0] + best[1] not in pieces:
            pieces.append(best[0] + best[1])
            scores.append(-1.0 - len(pieces))
    return pieces, scores


def join(parts, pair):
    joined, i = [], 0
    while i < len(parts):
        if parts[i:i + 2] == pair:
            joined.append(parts[i] + parts[i + 1])
            i += 2
        else:
            joined.append(parts[i])
            i += 1
    return tuple(joined)


class Encoder:
    """Text to tokens as llama2.c does it: the neighbours whose piece has the highest score are
    joined first, the first of equals. Word by word, which is the same, and remembered."""

    def __init__(self, pieces, scores):
        self.score = dict(zip(pieces, scores))
        self.number = {piece: FIRST_PIECE + i for i, piece in enumerate(pieces)}
        self.known = {}

    def word(self, word):
        if word not in self.known:
            parts = list(word)
            while True:
                pairs = [(self.score[a + b], -i) for i, (a, b) in enumerate(zip(parts, parts[1:]))
                         if a + b in self.score]
                if not pairs:
                    break
                i = -max(pairs)[1]
                parts[i:i + 2] = [parts[i] + parts[i + 1]]
            self.known[word] = [self.number[part] for part in parts]
        return self.known[word]

    def encode(self, text):
        return [token for word in WORD.findall(text) for token in self.word(word)]


def save_vocabulary(pieces, scores, path):
    entries = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    entries += [(b"<0x%02X>" % byte, 0.0) for byte in range(256)]
    entries += [(piece.encode(), score) for piece, score in zip(pieces, scores)]
    with open(path, "wb") as f:
        f.write(struct.pack("<i", max(len(name) for name, _ in entries)))
        for name, score in entries:
            f.write(struct.pack("<fi", score, len(name)) + name)


def load_vocabulary(path):
    with open(path, "rb") as f:
        data = f.read()
    pieces, scores, at = [], [], 4
    try:
        for i in range(VOCAB):
            score, length = struct.unpack_from("<fi", data, at)
            at += 8 + length
            if i >= FIRST_PIECE:
                pieces.append(data[at - length:at].decode())
                scores.append(score)
    except (struct.error, UnicodeDecodeError):
        at = -1
    if at != len(data):
        raise ValueError(f"{path} is not this model's vocabulary")
    return pieces, scores


# ---- the model -----------------------------------------------------------------------------------

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS = 96, 96, 4, 3, 1
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
            w = torch.randn(shape, generator=generator) * 0.05
        weights[name] = w.requires_grad_()
    return weights


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x, cos, sin):
    """x [batch, n, heads, head_dim]: rotates the interleaved pairs by their positions."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


BLOCK = 64                      # queries at a time, over the keys up to the last of them


class Attention(torch.autograd.Function):
    """Causal attention of many sets. q [sets, n * group, head_dim], the query heads of a group side
    by side; k and v [sets, n_k, head_dim], of which the last n are those of the queries' tokens.
    Written out because a block of one set stays in the cache: with PyTorch's own derivatives a step
    took 1.5 times as long."""

    @staticmethod
    def blocks(q, k, group):
        """Of each block: the end of its keys, its rows of q, and the mask of its logits."""
        n = q.shape[1] // group
        earlier = k.shape[1] - n
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            end = earlier + stop
            mask = torch.full((stop - start, end), -math.inf).triu(earlier + start + 1)
            yield end, slice(start * group, stop * group), mask.repeat_interleave(group, 0)

    @staticmethod
    def forward(ctx, q, k, v, group):
        sets = len(q)
        out, saved = torch.empty_like(q), []
        for end, rows, mask in Attention.blocks(q, k, group):
            weights = torch.empty(sets, len(mask), end)
            for s in range(sets):
                torch.addmm(mask, q[s, rows], k[s, :end].T, out=weights[s])
                torch.softmax(weights[s], -1, out=weights[s])
                torch.mm(weights[s], v[s, :end], out=out[s, rows])
            saved.append(weights)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, *saved)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, *saved = ctx.saved_tensors
        sets = len(q)
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        mean = (d_out * out).sum(-1, keepdim=True)
        for weights, (end, rows, _) in zip(saved, Attention.blocks(q, k, ctx.group)):
            for s in range(sets):
                d_v[s, :end].addmm_(weights[s].T, d_out[s, rows])
                d_logits = d_out[s, rows] @ v[s, :end].T
                d_logits.sub_(mean[s, rows]).mul_(weights[s])
                torch.mm(d_logits, k[s, :end], out=d_q[s, rows])
                d_k[s, :end].addmm_(d_logits.T, q[s, rows])
        return d_q, d_k, d_v, None


GROUP = HEADS // KV_HEADS


def forward(weights, tokens, positions, caches=None):
    """Logits [batch, n, vocab], and of each layer the queries [batch * kv_heads, n * group,
    head_dim], keys and values. `caches`: of each layer the keys and values of earlier tokens."""
    batch, n = tokens.shape
    x = weights["embedding"][tokens]
    cos, sin = COS[positions][:, :, None], SIN[positions][:, :, None]
    seen = []

    def sets(rows):
        return rows.transpose(1, 2).reshape(batch * KV_HEADS, -1, HEAD_DIM)

    for layer in range(LAYERS):
        h = rms_norm(x, weights["rms_att"][layer])
        q = (h @ weights["wq"][layer].T).view(batch, n, HEADS, HEAD_DIM)
        k = (h @ weights["wk"][layer].T).view(batch, n, KV_HEADS, HEAD_DIM)
        v = sets((h @ weights["wv"][layer].T).view(batch, n, KV_HEADS, HEAD_DIM))
        q = rotate(q, cos * HEAD_DIM ** -0.5, sin * HEAD_DIM ** -0.5)
        q, k = sets(q.view(batch, n, KV_HEADS, GROUP * HEAD_DIM)), sets(rotate(k, cos, sin))
        if caches is not None:
            k, v = (torch.cat(pair, 1) for pair in zip(caches[layer], (k, v)))
        seen.append((q, k, v))
        attended = Attention.apply(q, k, v, GROUP).view(batch, KV_HEADS, n, GROUP * HEAD_DIM)
        x = x + attended.transpose(1, 2).reshape(batch, n, DIM) @ weights["wo"][layer].T
        h = rms_norm(x, weights["rms_ffn"][layer])
        gate = F.silu(h @ weights["w1"][layer].T) * (h @ weights["w3"][layer].T)
        x = x + gate @ weights["w2"][layer].T
    return rms_norm(x, weights["rms_final"]) @ weights["embedding"].T, seen


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
        raise ValueError(f"{path} is not a checkpoint of this model's shape")
    floats = torch.from_numpy(np.frombuffer(data, "<f4", offset=28).copy())
    weights, start = {}, 0
    for name, shape in SHAPES.items():
        weights[name] = floats[start:start + math.prod(shape)].view(shape)
        start += math.prod(shape)
    return weights


# ---- the training --------------------------------------------------------------------------------

LR, LAST_LR, WARMUP_STEPS = 6e-3, 1e-4, 100
SHORT_STEPS, SHORT_BATCH, SHORT_LENGTH, N_PIECES = 5000, 8, 256, 4
LONG_STEPS, LONG_BATCH, LONG_LENGTH = 1000, 2, 1088
REACH = 1120                    # a short sequence is cut out of so many tokens


class Corpus:
    """The tokens of a text, and where its lines begin. A sequence begins with the token for that
    and with a line, which gets a space in front of it, as the tokenizer of llama2.c has it."""

    def __init__(self, encoder, text):
        tokens, self.lines = [], []
        for line in text.splitlines(keepends=True):
            first = WORD.match(line)[0]
            opening = encoder.encode(" " + first if first.strip() else first)
            self.lines.append((opening, len(tokens) + len(encoder.encode(first))))
            tokens += encoder.encode(line)
        self.tokens = np.array(tokens)
        self.starts_of = {}

    def starts(self, n):
        """How many of the lines, from the first, have `n` tokens from there to the text's end."""
        return sum(after + n <= len(self.tokens) for _, after in self.lines)

    def sequence(self, line, n):
        opening, after = self.lines[line]
        return np.concatenate(([BEGIN], opening, self.tokens[after:after + n]))[:n]


def draw(corpus, rng, batch, n, n_pieces):
    """Sequences of `n` tokens with their positions. In `n_pieces` pieces, they are cut out of a
    text of up to REACH tokens, and each token keeps its place in it: at the cost of a short
    sequence the model sees the distances of a long one. Returns tokens and positions [batch, n],
    and [batch, n - 1] whether the next token can be asked for: not across a cut."""
    reach = n if n_pieces == 1 else REACH
    n_starts = corpus.starts_of.setdefault(reach, corpus.starts(reach))
    tokens, positions = np.empty((2, batch, n), dtype=np.int64)
    for b in range(batch):
        text = corpus.sequence(int(rng.integers(n_starts)), reach)
        left_out = np.sort(rng.integers(0, rng.integers(1, reach - n + 2), n_pieces - 1))
        jumps = np.zeros(n, dtype=np.int64)
        jumps[n // n_pieces * np.arange(1, n_pieces)] = np.diff(left_out, prepend=0)
        positions[b] = np.arange(n) + np.cumsum(jumps)
        tokens[b] = text[positions[b]]
    asked = np.diff(positions) == 1
    return torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(asked)


def loss_of(weights, tokens, positions, asked):
    logits, _ = forward(weights, tokens[:, :-1], positions[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return losses[asked.flatten()].mean()


def train(corpus, seed):
    rng = np.random.default_rng(seed)
    weights = new_weights(seed)
    optimizer = torch.optim.AdamW(weights.values(), lr=LR, betas=(0.9, 0.98), weight_decay=0.05)
    n_steps, running = SHORT_STEPS + LONG_STEPS, 0.0
    for step in range(1, n_steps + 1):
        lr = LAST_LR + (LR - LAST_LR) * 0.5 * (1 + math.cos(math.pi * step / n_steps))
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / WARMUP_STEPS)
        if step <= SHORT_STEPS:
            batch = draw(corpus, rng, SHORT_BATCH, SHORT_LENGTH, N_PIECES)
        else:
            batch = draw(corpus, rng, LONG_BATCH, LONG_LENGTH, 1)
        loss = loss_of(weights, *batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        running += max(0.01, 1 / step) * (loss.item() - running)
        if step % 100 == 0:
            print(f"{time.process_time():6.0f} s  step {step:5d}  loss {running:.3f}", flush=True)
    return weights


# ---- the evaluation ------------------------------------------------------------------------------

PROMPT, STEPS, VOTERS = 1024, 64, 16


def votes(q, k, width):
    """What SnapKV's article computes for each K/V head [kv_heads, PROMPT - VOTERS]: the attention
    of the prompt's last queries to what is before them, summed over these and averaged over the
    group, then over `width` neighbours."""
    logits = q[:, -VOTERS * GROUP:] @ k.transpose(-1, -2)
    hidden = torch.full((VOTERS, PROMPT), -math.inf).triu(PROMPT - VOTERS + 1)
    attention = (logits + hidden.repeat_interleave(GROUP, 0)).softmax(-1)[..., :-VOTERS]
    return F.avg_pool1d(attention.sum(1) / GROUP, width, 1, width // 2)


def kept_positions(method, capacity, q, k):
    """[kv_heads, capacity]"""
    end = torch.arange(PROMPT).expand(KV_HEADS, PROMPT)
    if method == "last":
        return end[:, -capacity:]
    if method == "first 4 + last":
        return torch.cat((end[:, :4], end[:, 4 - capacity:]), 1)
    width = {"SnapKV without pooling": 1, "SnapKV, average of 5": 5}[method]
    best = votes(q, k, width).topk(capacity - VOTERS, 1).indices.sort(1).values
    return torch.cat((best, end[:, -VOTERS:]), 1)


METHODS = [(method, capacity) for capacity in (64, 128) for method in
           ("last", "first 4 + last", "SnapKV without pooling", "SnapKV, average of 5")]


@torch.no_grad()
def evaluate(weights, corpus, n_prompts):
    """Prints the loss on the beginning of a text, and for prompts from all over it the loss on what
    follows and how far the next tokens' distributions move when only some positions remain."""
    beginning = torch.from_numpy(corpus.sequence(0, PROMPT))[None]
    loss = loss_of(weights, beginning, torch.arange(PROMPT)[None], torch.ones(1, PROMPT - 1) == 1)
    print(f"the first {PROMPT} tokens: loss {loss.item():.5f}\n")
    n_starts = corpus.starts(PROMPT + STEPS + 1)
    divergences, losses = {}, {}
    for line in np.linspace(0, n_starts - 1, n_prompts).astype(int):
        tokens = torch.from_numpy(corpus.sequence(line, PROMPT + STEPS + 1))[None]
        positions = torch.arange(PROMPT + STEPS)[None]
        targets = tokens[0, PROMPT + 1:]
        _, prompt = forward(weights, tokens[:, :PROMPT], positions[:, :PROMPT])
        for method, capacity in [("all", PROMPT)] + METHODS:
            caches = []
            for q, k, v in prompt:
                if method != "all":
                    kept = kept_positions(method, capacity, q, k)
                    rows = kept[..., None].expand(-1, -1, HEAD_DIM)
                    k, v = k.gather(1, rows), v.gather(1, rows)
                caches.append((k, v))
            logits, _ = forward(weights, tokens[:, PROMPT:-1], positions[:, PROMPT:], caches)
            logs = logits[0].log_softmax(-1)
            if method == "all":
                full = logs
            moved = (full.exp() * (full - logs)).sum(-1).mean().item()
            divergences.setdefault((method, capacity), []).append(moved)
            losses.setdefault((method, capacity), []).append(F.nll_loss(logs, targets).item())
    print(f"{n_prompts} prompts of {PROMPT} tokens, the {STEPS} that follow each in the text\n\n"
          f"{'kept of each head':30s}   loss   KL to the full cache")
    for key, values in divergences.items():
        error = np.std(values) / math.sqrt(n_prompts)
        print(f"{key[0]:24s} {key[1]:5d}  {np.mean(losses[key]):.3f}   {np.mean(values):.4f}"
              f" +- {error:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bible", default="bible", help="the program that prints the text")
    parser.add_argument("--output", default="examples", help="the folder of the three files")
    parser.add_argument("--evaluate", action="store_true",
                        help="don't train: evaluate what is in that folder, on the unseen books")
    parser.add_argument("--prompts", type=int, default=100, help="how many to evaluate on")
    args = parser.parse_args()
    if args.prompts < 1:
        parser.error("--prompts must be at least 1")
    model, vocabulary, unseen = (os.path.join(args.output, name) for name in
                                 ("text_model.bin", "text_tokenizer.bin", "text_unseen.txt"))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        if args.evaluate:
            with open(unseen) as f:
                corpus = Corpus(Encoder(*load_vocabulary(vocabulary)), f.read())
            evaluate(load(model), corpus, args.prompts)
            return
        books = read_books(args.bible)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"train_text.py: {error}")
    text = "\n".join(text for name, text in books.items() if name not in UNSEEN)
    pieces, scores = train_pieces(text)
    corpus = Corpus(Encoder(pieces, scores), text)
    print(f"{len(text)} characters, {len(corpus.tokens)} tokens")
    save(train(corpus, args.seed), model)
    save_vocabulary(pieces, scores, vocabulary)
    with open(unseen, "w") as f:
        f.write("\n".join(text for name, text in books.items() if name in UNSEEN))
    print(f"trained in {time.process_time():.0f} s of the processor's time")


if __name__ == "__main__":
    main()
