"""Trains a small vision-language model as docs/training.md says, in NumPy, in f64, and writes golden files.

usage: pip install numpy; python3 train/tests/answers.py train/tests/golden/answers
                          python3 train/tests/answers.py train/tests/golden/answers-gate tensions
                          python3 train/tests/answers.py train/tests/golden/answers-timm pixels

The images, questions and answers have unlike lengths, encoder and decoder have several heads, and GELU is by the error
function. Gradients come from a tape of operations. `finite` compares some with differences. It writes `weights`, `batch`
and `expected`, with the names that the example `vlm_step` has. With `tensions` or `softmax`, the model has a gate with such a balancer.
With `pixels`, the encoder is timm's vision transformer, and `weights` says about it only what a state dict does not.
"""
import json
import math
import struct
import sys

import numpy as np

STEPS, RATE, DECAY = 3, 1e-3, 0.05
INPUTS, WIDTH, HEADS, DEPTH = 5, 16, 2, 2
TEXT_WIDTH, TEXT_HEADS, TEXT_DEPTH, IDS, PLACES = 24, 3, 2, 19, 14
IMAGES, QUESTIONS, ANSWERS = [1, 7, 3, 12], [2, 1, 6, 3], [4, 2, 3, 7]
PATCHES, QUERY, FEATURES, HIDDEN, BALANCER = [1, 3, 2, 5], 6, 13, 64, 128
SIZE, SIDE = 6, 2
folder, kind = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
pixels, balance = kind == "pixels", kind if kind != "pixels" else None
EPS = 1e-6 if pixels else 1e-5
random = np.random.default_rng(31)


class Node:
    """A value, and how its gradient goes to what it was computed from."""

    def __init__(self, value, parents=(), back=lambda g: ()):
        self.value, self.parents, self.back, self.grad = np.asarray(value, np.float64), parents, back, None

    def backward(self):
        order, seen = [], set()

        def visit(node):
            if id(node) not in seen:
                seen.add(id(node))
                for parent in node.parents:
                    visit(parent)
                order.append(node)

        visit(self)
        self.grad = np.ones_like(self.value)
        for node in reversed(order):
            if node.grad is None:
                continue
            for parent, grad in zip(node.parents, node.back(node.grad)):
                parent.grad = grad if parent.grad is None else parent.grad + grad


def product(a, b):
    return Node(a.value @ b.value, (a, b), lambda g: (g @ b.value.T, a.value.T @ g))


def turned(a):
    return Node(a.value.T, (a,), lambda g: (g.T,))


def plus(a, b):
    """The sum of two matrices, or of a matrix and a row."""
    row = b.value.ndim < a.value.ndim
    return Node(a.value + b.value, (a, b), lambda g: (g, g.sum(0) if row else g))


def rows(a, which):
    def back(g):
        whole = np.zeros_like(a.value)
        np.add.at(whole, which, g)
        return (whole,)

    return Node(a.value[which], (a,), back)


def columns(a, part):
    def back(g):
        whole = np.zeros_like(a.value)
        whole[:, part] = g
        return (whole,)

    return Node(a.value[:, part], (a,), back)


def stacked(parts, axis):
    ends = np.cumsum([part.value.shape[axis] for part in parts])[:-1]
    return Node(np.concatenate([p.value for p in parts], axis), tuple(parts), lambda g: np.split(g, ends, axis))


def attended(q, k, sees):
    """softmax of the products that `sees` allows."""
    scale = 1 / math.sqrt(q.value.shape[1])
    scores = np.where(sees, q.value @ k.value.T * scale, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)

    def back(g):
        d = p * (g - (p * g).sum(1, keepdims=True)) * scale
        return d @ k.value, d.T @ q.value

    return Node(p, (q, k), back)


def normed(x, weight, bias):
    mean = x.value.mean(1, keepdims=True)
    root = 1 / np.sqrt(((x.value - mean) ** 2).mean(1, keepdims=True) + EPS)
    n = (x.value - mean) * root

    def back(g):
        d = g * weight.value
        dx = root * (d - d.mean(1, keepdims=True) - n * (d * n).mean(1, keepdims=True))
        return dx, (g * n).sum(0), g.sum(0)

    return Node(n * weight.value + bias.value, (x, weight, bias), back)


def gelu(x):
    half = 0.5 * (1 + np.vectorize(math.erf)(x.value / math.sqrt(2)))
    bell = np.exp(-x.value**2 / 2) / math.sqrt(2 * math.pi)
    return Node(x.value * half, (x,), lambda g: (g * (half + x.value * bell),))


def cross_entropy(logits, labels):
    z = logits.value - logits.value.max(1, keepdims=True)
    log = z - np.log(np.exp(z).sum(1, keepdims=True))
    at = (np.arange(len(labels)), labels)

    def back(g):
        d = np.exp(log)
        d[at] -= 1
        return (g * d / len(labels),)

    return Node(-log[at].mean(), (logits,), back)


def relu(x):
    return Node(np.maximum(x.value, 0), (x,), lambda g: (g * (x.value > 0),))


def coupled(z, q):
    """(1 + cos) / 2 of each row of z and q."""
    z_norm, q_norm = np.linalg.norm(z.value, axis=1, keepdims=True), np.linalg.norm(q)
    cos = (z.value @ q[:, None]) / (z_norm * q_norm)
    return Node((1 + cos) / 2, (z,), lambda g: (g / 2 * (q / (z_norm * q_norm) - cos * z.value / z_norm**2),))


def statistics(x):
    """Mean, maximum and deviation of each column, column after column."""
    n, columns = x.value.shape
    mean, peak = x.value.mean(0), x.value.argmax(0)
    off = x.value - mean
    deviation = np.sqrt((off**2).sum(0) / max(n - 1, 1))

    def back(g):
        of_mean, of_peak, of_deviation = g.reshape(columns, 3).T
        d = np.tile(of_mean / n, (n, 1))
        d[peak, np.arange(columns)] += of_peak
        if n > 1:
            d += of_deviation * off / ((n - 1) * deviation)
        return (d,)

    return Node(np.stack([mean, x.value.max(0), deviation], 1).reshape(1, -1), (x,), back)


def softmax(v):
    p = np.exp(v.value - v.value.max())
    p /= p.sum()
    return Node(p, (v,), lambda g: (p * (g - (p * g).sum()),))


def tensions(v):
    """Each pair of scores shares a third: information and salience, coupling and information, salience and coupling."""
    t = 1 / (1 + np.exp(-v.value))
    poles = np.array([[1, -1, 0], [-1, 0, 1], [0, 1, -1]])
    return Node((1 + t @ poles) / 3, (v,), lambda g: (g @ poles.T / 3 * t * (1 - t),))


def gated(w, batch, b):
    """The tokens of an image, multiplied by the gates of their patches."""
    part = slice(*batch["cu_patches"][b : b + 2])
    features, query = Node(batch["features"][part]), batch["query"][b]
    head, balancer = "participatory_scorer.texture_proj.", "balancer.weight_predictor."
    p = coupled(linear(w, head + "2", relu(linear(w, head + "0", features))), query)
    scores = stacked([Node(batch[name][part, None]) for name in ["entropy", "salience"]] + [p], 1)
    seen = stacked([statistics(scores), Node(query[None, :])], 1)
    said = linear(w, balancer + "2", relu(linear(w, balancer + "0", seen)))
    mix = {"softmax": softmax, "tensions": tensions}[balance](linear(w, balancer + "4", relu(said)))
    rows_of = slice(*batch["cu_seqlens"][b : b + 2])
    tokens = batch["tokens"][rows_of]
    gate = rows(product(scores, turned(mix)), batch["patch"][rows_of] - part.start)
    return Node(tokens * gate.value, (gate,), lambda g: ((g * tokens).sum(1, keepdims=True),))


def flat(a, shape):
    return Node(a.value.reshape(shape), (a,), lambda g: (g.reshape(a.value.shape),))


def embedded(w, image):
    """The rows of the class token and of the patches of an image, each with its place."""
    across = range(0, SIZE, SIDE)
    cut = np.stack([image[:, y : y + SIDE, x : x + SIDE].ravel() for y in across for x in across])
    kernel = flat(w["encoder.patch_embed.proj.weight"], (WIDTH, -1))
    patches = plus(product(Node(cut), turned(kernel)), w["encoder.patch_embed.proj.bias"])
    rows = stacked([flat(w["encoder.cls_token"], (1, WIDTH)), patches], 0)
    return plus(rows, flat(w["encoder.pos_embed"], rows.value.shape))


def linear(w, name, x):
    return plus(product(x, turned(w[name + ".weight"])), w[name + ".bias"])


def norm(w, name, x):
    return normed(x, w[name + ".weight"], w[name + ".bias"])


def blocks(w, name, x, depth, heads, sees):
    """The blocks and the norm behind them, of one sequence."""
    width = x.value.shape[1]
    size = width // heads
    for k in range(depth):
        at = f"{name}blocks.{k}."
        qkv = linear(w, at + "attn.qkv", norm(w, at + "norm1", x))
        part = lambda kind, head: columns(qkv, slice(kind * width + head * size, kind * width + (head + 1) * size))
        mixed = [product(attended(part(0, h), part(1, h), sees), part(2, h)) for h in range(heads)]
        x = plus(x, linear(w, at + "attn.proj", stacked(mixed, 1)))
        x = plus(x, linear(w, at + "mlp.fc2", gelu(linear(w, at + "mlp.fc1", norm(w, at + "norm2", x)))))
    return norm(w, name + "norm", x)


def learn(w, batch):
    """The logits of the answers' ids, and the loss."""
    found, labels = [], []
    for b, asked in enumerate(batch["question"]):
        ids = batch["ids"][slice(*batch["text_cu_seqlens"][b : b + 2])]
        if pixels:
            x = embedded(w, batch["tokens"][b])
        else:
            image = slice(*batch["cu_seqlens"][b : b + 2])
            tokens = gated(w, batch, b) if balance else Node(batch["tokens"][image])
            position = Node(batch["position"][image])
            x = plus(linear(w, "encoder.embed", tokens), product(position, turned(w["encoder.position.weight"])))
        count = x.value.shape[0]
        image = linear(w, "projector", blocks(w, "encoder.", x, DEPTH, HEADS, np.ones((count, count), bool)))
        # The last id of an answer is said and not heard.
        heard = len(ids) - 1
        text = plus(rows(w["decoder.tok.weight"], ids[:heard]), rows(w["decoder.pos.weight"], np.arange(heard)))
        place = np.arange(count + heard)
        sees = (place[None, :] < count) | (place[None, :] <= place[:, None])
        x = blocks(w, "decoder.", stacked([image, text], 0), TEXT_DEPTH, TEXT_HEADS, sees)
        found.append(rows(x, np.arange(count + asked - 1, count + heard)))
        labels.extend(ids[asked:])
    logits = product(stacked(found, 0), turned(w["decoder.tok.weight"]))
    return logits, cross_entropy(logits, np.array(labels))


def shapes():
    def of_blocks(name, width, depth):
        for k in range(depth):
            at = f"{name}blocks.{k}."
            for part, out, inputs in [
                ("attn.qkv", 3 * width, width),
                ("attn.proj", width, width),
                ("mlp.fc1", 4 * width, width),
                ("mlp.fc2", width, 4 * width),
            ]:
                yield at + part + ".weight", (out, inputs)
                yield at + part + ".bias", (out,)
            for part in ["norm1", "norm2"]:
                yield at + part + ".weight", (width,)
                yield at + part + ".bias", (width,)
        yield name + "norm.weight", (width,)
        yield name + "norm.bias", (width,)

    if balance:
        head, balancer = "participatory_scorer.texture_proj.", "balancer.weight_predictor."
        for name, out, inputs in [
            (head + "0", HIDDEN, FEATURES),
            (head + "2", QUERY, HIDDEN),
            (balancer + "0", BALANCER, 9 + QUERY),
            (balancer + "2", BALANCER, BALANCER),
            (balancer + "4", 3, BALANCER),
        ]:
            yield name + ".weight", (out, inputs)
            yield name + ".bias", (out,)
    if pixels:
        yield "encoder.patch_embed.proj.weight", (WIDTH, 3, SIDE, SIDE)
        yield "encoder.patch_embed.proj.bias", (WIDTH,)
        yield "encoder.cls_token", (1, 1, WIDTH)
        yield "encoder.pos_embed", (1, (SIZE // SIDE) ** 2 + 1, WIDTH)
    else:
        yield "encoder.embed.weight", (WIDTH, INPUTS)
        yield "encoder.embed.bias", (WIDTH,)
        yield "encoder.position.weight", (WIDTH, 2)
    yield from of_blocks("encoder.", WIDTH, DEPTH)
    yield "projector.weight", (TEXT_WIDTH, WIDTH)
    yield "projector.bias", (TEXT_WIDTH,)
    yield "decoder.tok.weight", (IDS, TEXT_WIDTH)
    yield "decoder.pos.weight", (PLACES, TEXT_WIDTH)
    yield from of_blocks("decoder.", TEXT_WIDTH, TEXT_DEPTH)


def drawn(name, shape):
    x = random.standard_normal(shape)
    if len(shape) == 2:
        return x / math.sqrt(shape[1])
    if name.endswith("proj.weight"):
        return x / math.sqrt(np.prod(shape[1:]))
    if len(shape) == 3:  # of the class token and the places
        return 0.5 * x
    return 0.1 * x + (1 if "norm" in name and name.endswith("weight") else 0)


def save(tensors, name, metadata):
    types, header, parts, end = {"f": "F32", "i": "I32"}, {"__metadata__": metadata}, [], 0
    for key, tensor in sorted(tensors.items()):
        tensor = np.asarray(tensor)
        parts.append(tensor.astype("<f4" if tensor.dtype.kind == "f" else "<i4").tobytes())
        span = [end, end := end + len(parts[-1])]
        header[key] = {"dtype": types[tensor.dtype.kind], "shape": tensor.shape, "data_offsets": span}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(f"{folder}/{name}.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def finite(w, batch, grads):
    """Compares gradients with differences, in some directions."""
    names = ["decoder.tok.weight", "decoder.pos.weight", "projector.weight", "encoder.blocks.0.attn.qkv.weight"]
    others = ("participatory", "balancer", "encoder.patch_embed", "encoder.cls_token", "encoder.pos_embed")
    for name in names + [name for name in w if name.startswith(others)]:
        way, step = random.standard_normal(w[name].value.shape), 1e-5
        sides = []
        for sign in [1, -1]:
            moved = dict(w)
            moved[name] = Node(w[name].value + sign * step * way)
            sides.append(learn(moved, batch)[1].value)
        found, wanted = (sides[0] - sides[1]) / (2 * step), (grads[name] * way).sum()
        assert abs(found - wanted) < 1e-7 * max(1, abs(wanted)), (name, found, wanted)


ends = lambda lengths: np.cumsum([0, *lengths]).astype("i4")
texts = [np.append(random.integers(1, IDS, asked + said - 1), 0) for asked, said in zip(QUESTIONS, ANSWERS)]
if pixels:
    images = {"tokens": random.standard_normal((len(IMAGES), 3, SIZE, SIZE)).astype("f4")}
else:
    images = {
        "tokens": random.standard_normal((sum(IMAGES), INPUTS)).astype("f4"),
        "position": random.random((sum(IMAGES), 2)).astype("f4"),
        "cu_seqlens": ends(IMAGES),
    }
batch = {
    **images,
    "ids": np.concatenate(texts).astype("i4"),
    "text_cu_seqlens": ends(map(len, texts)),
    "question": np.array(QUESTIONS, "i4"),
}
if balance:
    count = sum(PATCHES)
    for name, shape in [("features", (count, FEATURES)), ("entropy", count), ("salience", count)]:
        batch[name] = random.random(shape).astype("f4")
    batch["cu_patches"] = ends(PATCHES)
    owned = [np.sort(random.integers(0, n, rows)) for n, rows in zip(PATCHES, IMAGES)]
    batch["patch"] = np.concatenate([own + start for own, start in zip(owned, batch["cu_patches"])]).astype("i4")
    batch["query"] = random.standard_normal((len(IMAGES), QUERY)).astype("f4")
first = {name: drawn(name, shape).astype("f4") for name, shape in shapes()}
save(batch, "batch", {})
described = dict(heads=HEADS, depth=DEPTH, decoder_heads=TEXT_HEADS, decoder_depth=TEXT_DEPTH, gelu="erf")
if pixels:
    del described["depth"], described["gelu"]
if balance:
    described["tensions"] = str(balance == "tensions").lower()
save(first, "weights", {key: str(value) for key, value in described.items()})

values = {name: tensor.astype("f8") for name, tensor in first.items()}
moments = {name: [np.zeros_like(v), np.zeros_like(v)] for name, v in values.items()}
result, losses = {}, []
for t in range(1, STEPS + 2):
    w = {name: Node(v) for name, v in values.items()}
    logits, loss = learn(w, batch)
    losses.append(loss.value)
    if t > STEPS:
        break
    loss.backward()
    grads = {name: node.grad for name, node in w.items()}
    if t == 1:
        finite(w, batch, grads)
        result["logits"] = logits.value
        result.update({f"grad.{name}": grad for name, grad in grads.items()})
    for name, v in values.items():
        m, s = moments[name]
        m[:] = 0.9 * m + 0.1 * grads[name]
        s[:] = 0.999 * s + 0.001 * grads[name] ** 2
        step = RATE * (m / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
        values[name] = v * (1 - RATE * DECAY) - step
result["losses"] = np.array(losses)
result.update({f"step{STEPS}.{name}": v for name, v in values.items()})
save(result, "expected", {"steps": str(STEPS), "lr": str(RATE), "weight_decay": str(DECAY)})
print(f"losses {losses}")
