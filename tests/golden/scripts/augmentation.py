"""Independent float64 oracle of section 9 of docs/spec.md (NumPy). It made the files of tests/golden/augment.

make:  augmentation.py IMAGE OUT.safetensors SEED EPOCH INDEX SIZE
       augmentation.py IMAGE OUT.safetensors SEED EPOCH INDEX SIZE more    (for tests/golden/augment-more)
"""
import sys, math
import numpy as np
from PIL import Image
from safetensors.numpy import save_file

def philox(counter, key):
    c, k = list(counter), list(key); M = 0xffffffff
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & M, (a >> 32) ^ c[3] ^ k[1], a & M]
        k = [(k[0] + 0x9E3779B9) & M, (k[1] + 0xBB67AE85) & M]
    return c
assert philox([0] * 4, [0] * 2) == [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]
assert philox([0xffffffff] * 4, [0xffffffff] * 2) == [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]

def draws(seed, epoch, index, draw):
    w = philox([index & 0xffffffff, index >> 32, epoch, draw], [seed & 0xffffffff, seed >> 32])
    return [(x >> 8) / 2 ** 24 for x in w]

D = dict(area=(0.08, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5, brightness=0.4, contrast=0.4, saturation=0.4, grayscale=0.1, blur=0.5, sigma=(0.1, 2.0),
         mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
def lerp(r, u): return r[0] + (r[1] - r[0]) * u

def parameters(h, w, seed, epoch, index, o=D):
    crop = None
    for k in range(10):
        u = draws(seed, epoch, index, 2 + k)
        area = h * w * lerp(o["area"], u[0]); ratio = math.exp(lerp([math.log(r) for r in o["ratio"]], u[1]))
        cw, ch = math.floor(math.sqrt(area * ratio) + 0.5), math.floor(math.sqrt(area / ratio) + 0.5)
        if 0 < cw <= w and 0 < ch <= h:
            crop = (math.floor(u[2] * (h - ch + 1)), math.floor(u[3] * (w - cw + 1)), ch, cw); break
    if crop is None:
        r = w / h; lo, hi = o["ratio"]
        if r < lo: cw, ch = w, max(1, min(h, math.floor(w / lo + 0.5)))
        elif r > hi: ch, cw = h, max(1, min(w, math.floor(h * hi + 0.5)))
        else: ch, cw = h, w
        crop = ((h - ch) // 2, (w - cw) // 2, ch, cw)
    a, b = draws(seed, epoch, index, 0), draws(seed, epoch, index, 1)
    f = lambda s, u: 1 + s * (2 * u - 1)
    return dict(crop=crop, flip=a[0] < o["flip"], brightness=f(o["brightness"], a[1]), contrast=f(o["contrast"], a[2]), saturation=f(o["saturation"], a[3]),
                grayscale=b[0] < o["grayscale"], sigma=lerp(o["sigma"], b[2]) if b[1] < o["blur"] else 0.0)

def weights(n, size):
    """[size, n]: antialiased bilinear from n samples to size."""
    s = n / size; sup = max(1.0, s); W = np.zeros((size, n))
    for i in range(size):
        c = (i + 0.5) * s
        for j in range(max(0, math.floor(c - sup)), min(n, math.ceil(c + sup))):
            W[i, j] = max(0.0, 1 - abs((j + 0.5 - c) / sup))
        W[i] /= W[i].sum()
    return W

LUMA = np.array([0.299, 0.587, 0.114]).reshape(3, 1, 1)
def apply(rgb8, p, size, o=D):
    t, l, h, w = p["crop"]
    x = rgb8[t:t + h, l:l + w].astype(np.float64).transpose(2, 0, 1) / 255
    x = np.einsum("yj,cjk,xk->cyx", weights(h, size), x, weights(w, size))
    if p["flip"]: x = x[:, :, ::-1]
    c01 = lambda v: np.clip(v, 0, 1)
    x = c01(x * p["brightness"])
    m = (x * LUMA).sum(0).mean(); x = c01(p["contrast"] * x + (1 - p["contrast"]) * m)
    g = (x * LUMA).sum(0, keepdims=True); x = c01(p["saturation"] * x + (1 - p["saturation"]) * g)
    if p["grayscale"]: x = np.repeat((x * LUMA).sum(0, keepdims=True), 3, 0)
    if p["sigma"] > 0:
        k = np.exp(-np.arange(-3, 4) ** 2 / (2 * p["sigma"] ** 2)); k /= k.sum()
        q = np.pad(x, ((0, 0), (3, 3), (3, 3)), mode="reflect")
        q = sum(k[i] * q[:, i:i + size] for i in range(7)); x = sum(k[i] * q[:, :, i:i + size] for i in range(7))
    return (x - np.array(o["mean"]).reshape(3, 1, 1)) / np.array(o["std"]).reshape(3, 1, 1)

# The steps that are off by default, with the options of the files of augment-more.
M = dict(flip_vertical=0.5, rotation=30.0, hue=0.3, erase=0.6, erase_area=(0.02, 0.33), erase_ratio=(0.3, 3.3), mix=0.8, alpha=0.4)

def more(seed, epoch, index, o=M):
    a, b = draws(seed, epoch, index, 2 ** 31), draws(seed, epoch, index, 2 ** 31 + 1)
    erased, mix = [0.0] * 4, 1.0
    if b[0] < o["erase"]:
        for k in range(10):
            u = draws(seed, epoch, index, 2 ** 31 + 2 ** 20 + k)
            area = lerp(o["erase_area"], u[0]); ratio = math.exp(lerp([math.log(r) for r in o["erase_ratio"]], u[1]))
            w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
            if w <= 1 and h <= 1:
                erased = [u[2] * (1 - h), u[3] * (1 - w), h, w]; break
    if b[1] < o["mix"]:
        mix = 0.5
        for k in range(64):
            u = draws(seed, epoch, index, 2 ** 31 + 2 ** 21 + k // 2)[2 * (k % 2):][:2]
            x, y = [(v + 2 ** -25) ** (1 / o["alpha"]) for v in u]
            if x + y <= 1:
                mix = x / (x + y); break
    return dict(vertical=a[0] < o["flip_vertical"], angle=o["rotation"] * (2 * a[1] - 1), hue=o["hue"] * (2 * a[2] - 1), erased=erased, mix=mix)

def hsv_shift(x, turns):
    """Hue by the hexagon of HSV (Smith 1978), as in colorsys, over [3, S, S]."""
    import colorsys
    flat = x.reshape(3, -1).T
    out = []
    for r, g, b in flat:
        h, s, v = colorsys.rgb_to_hsv(r, g, b)
        out.append(colorsys.hsv_to_rgb((h + turns) % 1.0, s, v))
    return np.array(out).T.reshape(x.shape)

def finish(x, p, fill=D["mean"]):
    """[3, S, S] from 0 to 1: vertical flip, rotation, hue, erasing."""
    S = x.shape[1]
    if p["vertical"]: x = x[:, ::-1]
    a = math.radians(p["angle"]); d = np.arange(S) + 0.5 - S / 2
    v = math.sin(a) * d[None, :] + math.cos(a) * d[:, None] + S / 2 - 0.5
    u = math.cos(a) * d[None, :] - math.sin(a) * d[:, None] + S / 2 - 0.5
    pad = np.pad(x, ((0, 0), (S, S), (S, S)))  # outside is black
    i, j = np.floor(v).astype(int), np.floor(u).astype(int); fv, fu = v - i, u - j
    g = lambda di, dj: pad[:, i + S + di, j + S + dj]
    x = (1 - fv) * ((1 - fu) * g(0, 0) + fu * g(0, 1)) + fv * ((1 - fu) * g(1, 0) + fu * g(1, 1))
    x = hsv_shift(x, p["hue"])
    t, l, h, w = p["erased"]; c = (np.arange(S) + 0.5) / S
    m = ((c >= t) & (c < t + h))[:, None] & ((c >= l) & (c < l + w))[None, :]
    return np.where(m, np.array(fill).reshape(3, 1, 1), x)

if __name__ == "__main__":
    img = np.array(Image.open(sys.argv[1]).convert("RGB")); seed, epoch, index, size = map(int, sys.argv[3:7])
    p = parameters(*img.shape[:2], seed, epoch, index); print(sys.argv[1], p)
    out, tensors = apply(img, p, size), {}
    if sys.argv[7:] == ["more"]:
        mean, std = (np.array(D[k]).reshape(3, 1, 1) for k in ("mean", "std"))
        # The image, and the next one of the data set, which is the same photograph.
        both = [(parameters(*img.shape[:2], seed, epoch, i), more(seed, epoch, i)) for i in (index, index + 1)]
        a, b = [finish(apply(img, q, size) * std + mean, m) for q, m in both]; m = both[0][1]; print(m)
        out = (m["mix"] * a + (1 - m["mix"]) * b - mean) / std
        tensors["changes"] = np.array([m["vertical"], m["angle"], m["hue"], *m["erased"], m["mix"]], "f8")
    save_file({"image": np.ascontiguousarray(out.astype("f4")), "crop": np.array(p["crop"], "i4"), **tensors,
               "factors": np.array([p["flip"], p["brightness"], p["contrast"], p["saturation"], p["grayscale"], p["sigma"]], "f8")}, sys.argv[2])
