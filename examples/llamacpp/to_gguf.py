#!/usr/bin/env python3
"""Writes small GGUF models for llama.cpp, and a prompt for the one that recalls.

    to_gguf.py recall OUT.gguf           the built-in model, examples/recall_model.bin
    to_gguf.py random OUT.gguf           random weights; --help lists the sizes
    to_gguf.py prompt [--seed N]         a prompt of 1024 tokens for the first; its answer is the
                                         last line on standard error

Python's standard library alone. The recall model's tokens are words (`k7 v3 ...`); a random model
reads any text, a token a byte. A file appears when it is whole.
"""
import argparse
import array
import math
import os
import random
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ALIGNMENT = 32

# ---- the GGUF format, version 3, little-endian ---------------------------------------------------

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9       # types of metadata
TENSOR_F32, TENSOR_F16 = 0, 1                               # and of tensors
TOKEN_NORMAL, TOKEN_BYTE = 1, 6


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind, value):
    return text(value) if kind == STRING else struct.pack({U32: "<I", I32: "<i", F32: "<f",
                                                           BOOL: "<?"}[kind], value)


def field(key, kind, value):
    """A piece of metadata; a list becomes an array of `kind`."""
    if isinstance(value, list):
        head = struct.pack("<IIQ", ARRAY, kind, len(value))
        return text(key) + head + b"".join(scalar(kind, v) for v in value)
    return text(key) + struct.pack("<I", kind) + scalar(kind, value)


def padded(n):
    return -n % ALIGNMENT


def write_gguf(path, fields, tensors):
    """tensors: (name, shape with the fastest dimension last, type, bytes)."""
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields))] + fields
    offset = 0
    for name, shape, kind, data in tensors:
        dims = list(reversed(shape))
        head.append(text(name) + struct.pack("<I%dQ" % len(dims), len(dims), *dims) +
                    struct.pack("<IQ", kind, offset))
        offset += len(data) + padded(len(data))
    head = b"".join(head)
    part = path + ".part"
    try:
        with open(part, "wb") as file:
            file.write(head + bytes(padded(len(head))))
            for _, _, _, data in tensors:
                file.write(data + bytes(padded(len(data))))
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def describe(arch, sizes, tokenizer, tokens, token_type, noise=0):
    """The metadata of a model; sizes as the recall model's header names them. `noise` is the token
    that stands for what is in none."""
    dim, hidden, layers, heads, kv_heads, vocabulary, length = sizes
    key = lambda name, kind, value: field(arch + "." + name, kind, value)
    return [
        field("general.architecture", STRING, arch),
        key("context_length", U32, length),
        key("embedding_length", U32, dim),
        key("block_count", U32, layers),
        key("feed_forward_length", U32, hidden),
        key("attention.head_count", U32, heads),
        key("attention.head_count_kv", U32, kv_heads),
        key("attention.layer_norm_rms_epsilon", F32, 1e-5),
        key("rope.dimension_count", U32, dim // heads),
        key("rope.freq_base", F32, 1e4),
        key("vocab_size", U32, vocabulary),
        field("tokenizer.ggml.model", STRING, tokenizer),
        field("tokenizer.ggml.tokens", STRING, tokens),
        field("tokenizer.ggml.scores", F32, [0.0] * vocabulary),
        field("tokenizer.ggml.token_type", I32, [token_type] * vocabulary),
        field("tokenizer.ggml.unknown_token_id", U32, noise),
        field("tokenizer.ggml.eos_token_id", U32, 0),
        field("tokenizer.ggml.add_bos_token", BOOL, False),
        field("tokenizer.ggml.add_eos_token", BOOL, False),
        field("tokenizer.ggml.add_space_prefix", BOOL, False),
    ]


# ---- the recall model ----------------------------------------------------------------------------

N_KEYS, N_VALUES, N_FILLER, N_FACTS, LENGTH = 32, 16, 46, 16, 1024      # as in recall_task.h
WORDS = ["^", "?"] + ["%s%d" % (kind, i) for kind, n in (("k", N_KEYS), ("v", N_VALUES),
                                                         ("n", N_FILLER)) for i in range(n)]
SPACE = "\u2581"        # what the tokenizer writes for it


def write_recall(args):
    with open(args.weights, "rb") as file:
        sizes = struct.unpack("<7i", file.read(28))
        weights = array.array("f", file.read())
    if sys.byteorder == "big":
        weights.byteswap()
    dim, hidden, layers, heads, kv_heads, vocabulary, length = sizes
    kv = dim // heads * kv_heads
    parts = [   # in the file's order; the names are llama.cpp's
        ("token_embd", 1, (vocabulary, dim)), ("attn_norm", layers, (dim,)),
        ("attn_q", layers, (dim, dim)), ("attn_k", layers, (kv, dim)),
        ("attn_v", layers, (kv, dim)), ("attn_output", layers, (dim, dim)),
        ("ffn_norm", layers, (dim,)), ("ffn_gate", layers, (hidden, dim)),
        ("ffn_down", layers, (dim, hidden)), ("ffn_up", layers, (hidden, dim)),
        ("output_norm", 1, (dim,))]
    if vocabulary != len(WORDS):
        sys.exit("to_gguf.py: %s: not the recall model (another vocabulary)" % args.weights)
    tensors, at = [], 0
    for name, count, shape in parts:
        for i in range(count):
            n = math.prod(shape)
            one = weights[at:at + n]
            if sys.byteorder == "big":
                one.byteswap()
            full = name if count == 1 else "blk.%d.%s" % (i, name)
            tensors.append((full + ".weight", shape, TENSOR_F32, one.tobytes()))
            at += n
    words = [word + SPACE for word in WORDS]
    write_gguf(args.out, describe("llama", sizes, "t5", words, TOKEN_NORMAL,
                                  WORDS.index("n0")), tensors)


def print_prompt(args):
    """Noise in which facts `key v v v` are hidden, then `? key`: the task of recall_task.h."""
    rng = random.Random(args.seed)
    keys = rng.sample(range(N_KEYS), N_FACTS)
    facts = [["k%d" % key] + ["v%d" % rng.randrange(N_VALUES) for _ in range(3)] for key in keys]
    units = [["n%d" % rng.randrange(N_FILLER)] for _ in range(LENGTH - 3 - 4 * N_FACTS)] + facts
    rng.shuffle(units)
    asked = rng.choice(facts)
    words = ["^"] + [word for unit in units for word in unit] + ["?", asked[0]]
    print(" ".join(words), end=" ")
    print(" ".join(asked[1:]), file=sys.stderr)


# ---- random models -------------------------------------------------------------------------------

def random_tensor(rng, shape, kind):
    """Numbers of random sign between 1 and 2 times a power of two: as large as keeps the variance
    of what the matrix is applied to. Bits are drawn and masked, for Python's speed."""
    n = math.prod(shape)
    exponent = -round(math.log2(1.53 * math.sqrt(shape[-1])))      # 1.53: their mean square's root
    size, sign_and_mantissa, fixed = (2, 0x83ff, 15 + exponent << 10) if kind == TENSOR_F16 else \
        (4, 0x807fffff, 127 + exponent << 23)
    ones = lambda word: int.from_bytes(word.to_bytes(size, "little") * n, "little")
    bits = int.from_bytes(rng.randbytes(n * size), "little") & ones(sign_and_mantissa) | ones(fixed)
    return bits.to_bytes(n * size, "little")


def write_random(args):
    rng = random.Random(args.seed)
    dim, hidden = args.heads * args.head_dim, args.hidden
    kv, kind = args.kv_heads * args.head_dim, TENSOR_F16 if args.f16 else TENSOR_F32
    if args.heads % args.kv_heads:
        sys.exit("to_gguf.py: --heads must be a multiple of --kv-heads")
    tensors = []

    def add(name, *shape):
        is_norm = len(shape) == 1
        tensors.append((name + ".weight", shape, TENSOR_F32 if is_norm else kind,
                        struct.pack("<f", 1) * shape[0] if is_norm else
                        random_tensor(rng, shape, kind)))

    def add_bias(name, n):
        tensors.append((name + ".bias", (n,), TENSOR_F32, bytes(4 * n)))

    add("token_embd", 256, dim)
    for i in range(args.layers):
        block = "blk.%d." % i
        add(block + "attn_norm", dim)
        add(block + "attn_q", dim, dim)
        add(block + "attn_k", kv, dim)
        add(block + "attn_v", kv, dim)
        add(block + "attn_output", dim, dim)
        add(block + "ffn_norm", dim)
        add(block + "ffn_gate", hidden, dim)
        add(block + "ffn_up", hidden, dim)
        add(block + "ffn_down", dim, hidden)
        if args.arch == "gemma3":
            for name, n in (("attn_q_norm", args.head_dim), ("attn_k_norm", args.head_dim),
                            ("post_attention_norm", dim), ("post_ffw_norm", dim)):
                add(block + name, n)
        if args.arch == "qwen2vl":
            for name, n in (("attn_q", dim), ("attn_k", kv), ("attn_v", kv)):
                add_bias(block + name, n)
    add("output_norm", dim)
    tokens = ["<0x%02X>" % i for i in range(256)]
    sizes = dim, hidden, args.layers, args.heads, args.kv_heads, 256, 131072
    arch = "llama" if args.arch == "longrope" else args.arch
    fields = describe(arch, sizes, "llama", tokens, TOKEN_BYTE)
    if args.arch == "longrope":
        fields += [field("llama.rope.scaling.type", STRING, "longrope"),
                   field("llama.rope.scaling.original_context_length", U32, 4096)]
    if args.arch == "gemma3":
        fields += [field("gemma3.attention.sliding_window", U32, 64),
                   field("gemma3.attention.key_length", U32, args.head_dim),
                   field("gemma3.attention.value_length", U32, args.head_dim)]
    if args.arch == "qwen2vl":
        quarter = args.head_dim // 4
        fields.append(field("qwen2vl.rope.dimension_sections", I32, [quarter, quarter, 0, 0]))
    write_gguf(args.out, fields, tensors)


def positive(value):
    if int(value) <= 0:
        raise argparse.ArgumentTypeError("not above 0")
    return int(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    recall = kinds.add_parser("recall")
    recall.add_argument("out")
    recall.add_argument("--weights", default=os.path.join(HERE, "..", "recall_model.bin"))
    recall.set_defaults(run=write_recall)
    sized = kinds.add_parser("random", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    sized.add_argument("out")
    for name, default in (("head-dim", 64), ("heads", 4), ("kv-heads", 2), ("layers", 2),
                          ("hidden", 512)):
        sized.add_argument("--" + name, type=positive, default=default, help=" ")
    sized.add_argument("--f16", action="store_true", help="weights in half precision")
    sized.add_argument("--arch", choices=("llama", "longrope", "gemma3", "qwen2vl"),
                       default="llama", help="longrope, gemma3 (it slides windows) and qwen2vl "
                       "(M-RoPE) are refused")
    sized.add_argument("--seed", type=int, default=1, help=" ")
    sized.set_defaults(run=write_random)
    prompt = kinds.add_parser("prompt")
    prompt.add_argument("--seed", type=int, default=1)
    prompt.set_defaults(run=print_prompt)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    try:
        main()
    except (OSError, struct.error) as error:
        sys.exit("to_gguf.py: %s" % error)
