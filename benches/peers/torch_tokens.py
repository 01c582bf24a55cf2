"""Photographs to adaptive tokens in PyTorch: everything `docs/spec.md` defines in sections 1 to 5, without a query.

It is written as for a product in PyTorch: each step works on all pixels, patches or tokens at once, shapes depend on
the image's size only, and nothing makes the host wait for the device. (So there is `masked_fill` where one may expect
`where` with a number, which can be copied from the host.) The same text runs eagerly, compiles to one graph without
breaks, and can be captured as a CUDA graph.
"""
import math

import torch
import torch.nn.functional as F


def srgb_to_linear():
    """Linear light of each of the 256 values of a channel."""
    c = torch.arange(256, dtype=torch.float64) / 255
    return torch.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4).float()


def gains(lo, hi, focus):
    """The gain of each step of a patch's side, 0 to lo and on to hi, in fixed point."""
    utility = [float(n * n) ** focus for n in range(hi + 1)]
    slopes = [utility[lo] / (lo * lo)] + [(utility[n] - utility[n - 1]) / (2 * n - 1) for n in range(lo + 1, hi + 1)]
    values = [65535] + [math.floor(65535 * slope / slopes[0] + 0.5) for slope in slopes[1:]]
    return [min(values[: i + 1]) for i in range(len(values))]


def weighted(planes, weights):
    """The sum of planes times weights: a multiplication, then a fused multiplication and addition for each other plane."""
    total = planes[0] * weights[0]
    for plane, weight in zip(planes[1:], weights[1:]):
        total = torch.add(total, plane, alpha=weight)
    return total


class ImageToTokens(torch.nn.Module):
    """`[H, W, 3]` bytes of sRGB to tokens, for images of one size."""

    def __init__(
        self, height, width, patch=32, sides=(8, 20), budget=4096, focus=0.8, fixation=(0.5, 0.5), foveal_bias=0.0
    ):
        super().__init__()
        lo, hi = sides
        self.height, self.width, self.patch, self.lo = height, width, patch, lo
        self.grid = (-(-height // patch), -(-width // patch))
        self.fixation, self.foveal_bias = fixation, foveal_bias
        self.patches = self.grid[0] * self.grid[1]
        # What the results have room for: how much of it they fill is known on the device only.
        self.budget = min(budget, self.patches * hi * hi)
        self.selected = min(self.patches, self.budget // (lo * lo))
        # The longest side of a token's cell, in pixels.
        lengths = {min(patch, height), min(patch, width), (height - 1) % patch + 1, (width - 1) % patch + 1}
        ends = [(c * length // n, -(-(c + 1) * length // n)) for length in lengths for n in range(lo, hi + 1) for c in range(n)]
        self.extent = max(end - start for start, end in ends)

        rows = (height - patch * torch.arange(self.grid[0])).clamp(max=patch)
        columns = (width - patch * torch.arange(self.grid[1])).clamp(max=patch)
        side = torch.arange(lo, hi + 1)
        self.register_buffer("linear", srgb_to_linear())
        self.register_buffer("pixels", (rows[:, None] * columns).float())
        self.register_buffer("gains", torch.tensor(gains(lo, hi, focus)))
        self.register_buffer("costs", torch.where(side == lo, side**2, 2 * side - 1))
        self.register_buffer("one", torch.ones(1, dtype=torch.int32))

    def textures(self, rgb):
        """The texture array `[13, H, W]`."""
        h, w = self.height, self.width
        bytes_ = rgb.permute(2, 0, 1).contiguous()
        channels = bytes_.float()
        # Linear light, CIELAB.
        light = self.linear[bytes_.int()]
        x = weighted(light, (0.412453 / 0.95047, 0.357580 / 0.95047, 0.180423 / 0.95047))
        y = weighted(light, (0.212671, 0.715160, 0.072169))
        z = weighted(light, (0.019334 / 1.08883, 0.119193 / 1.08883, 0.950227 / 1.08883))
        x, y, z = (torch.where(t > 0.008856, t ** (1 / 3), 7.787 * t + 16 / 116) for t in (x, y, z))
        lab = (1.16 * y - 0.16, (500 / 255) * (x - y) + 128 / 255, (200 / 255) * (y - z) + 128 / 255)
        # Luma times 255000, its differences and the sum of a window are integers below 2^24, so exact.
        luma = weighted(channels, (299.0, 587.0, 114.0))
        p = F.pad(luma[None], (1, 1, 1, 1), mode="replicate")[0]
        across, down = p[:, 2:] - p[:, :-2], p[2:] - p[:-2]
        gx = torch.add(across[:-2] + across[2:], across[1:-1], alpha=2) / 2040000
        gy = torch.add(down[:, :-2] + down[:, 2:], down[:, 1:-1], alpha=2) / 2040000
        triples = p[:-2] + p[1:-1] + p[2:]
        mean = (triples[:, :-2] + triples[:, 1:-1] + triples[:, 2:]) / 9
        squares = torch.zeros_like(mean)
        for i in range(3):
            for j in range(3):
                deviation = p[i : i + h, j : j + w] - mean
                squares = torch.addcmul(squares, deviation, deviation)
        contrast = squares.sqrt() * (2 / 3 / 255000)
        # Position.
        i = torch.arange(h, device=rgb.device)[:, None] / max(h - 1, 1)
        j = torch.arange(w, device=rgb.device) / max(w - 1, 1)
        fy, fx = self.fixation
        eccentricity = torch.hypot(i - fy, j - fx) / math.hypot(max(fy, 1 - fy), max(fx, 1 - fx))
        planes = (*(channels / 255), *lab, gx, gy, torch.hypot(gx, gy), i.expand(h, w), j.expand(h, w), eccentricity, contrast)
        return torch.stack(planes)

    def features(self, planes):
        """The mean of each plane over each patch, `[N, 13]`: along the rows first, which are contiguous."""
        gh, gw = self.grid
        sums = self.in_patches(planes, -1, gw).sum(-1)
        sums = self.in_patches(sums, -2, gh).sum(-2)
        return (sums / self.pixels).flatten(1).T

    def in_patches(self, values, dim, count):
        """Splits a dimension into `count` patches, the last of them filled up with zeros."""
        missing = count * self.patch - values.shape[dim]
        if missing:
            values = F.pad(values, (0, 0) * (-1 - dim) + (0, missing))
        return values.unflatten(dim, (count, self.patch))

    def entropy(self, rgb):
        """The information score `[N]`: entropy of each patch's 256 bins of luma, in bits, over 8."""
        r, g, b = rgb.int().unbind(-1)
        luma = (77 * r + 150 * g + 29 * b + 128) >> 8
        row = torch.arange(self.height, device=rgb.device)[:, None] // self.patch
        column = torch.arange(self.width, device=rgb.device) // self.patch
        bins = ((row * self.grid[1] + column) * 256 + luma).flatten()
        # Not bincount, which makes the host wait.
        counts = torch.zeros(self.patches * 256, dtype=torch.int32, device=rgb.device)
        counts = counts.scatter_add(0, bins, self.one.expand(bins.shape)).view(-1, 256)
        return torch.special.entr(counts / self.pixels.view(-1, 1)).sum(1) / (8 * math.log(2))

    def salience(self, features):
        edges = features[:, 8]
        strongest = edges.max()
        return (edges / strongest).masked_fill(strongest == 0, 0) * (1 - self.foveal_bias * features[:, 11])

    def relevance(self, entropy, salience):
        raw = 0.5 * entropy + 0.5 * salience
        least, most = torch.aminmax(raw)
        spread = most - least
        return ((raw - least) / (spread + 1e-8)).masked_fill(spread < 1e-6, 1)

    def allocate(self, relevance):
        """The side of each patch: all steps of all patches by falling key, until the first that does not fit the budget.

        That is the definition by thresholds: t* - 1 is the key of that step, all of greater key fit, and those of
        its key come in raster order, since the sort is stable.
        """
        steps = len(self.gains)
        share = (relevance.double() * 65535 + 0.5).floor().clamp(1, 65535).long()
        keys = (share[:, None] * self.gains).flatten()
        # Keys are below 2^32: 32 bits of the same order take half as long to sort as 64.
        order = torch.sort((keys - 2**31).int(), descending=True, stable=True).indices
        spent = self.costs[order % steps].cumsum(0)
        taken = torch.zeros_like(keys).scatter(0, order, (spent <= self.budget).long()) * (keys > 0)
        rises = taken.view(-1, steps).sum(1)
        return (rises + (self.lo - 1)).masked_fill(rises == 0, 0)

    def compress(self, planes, sides):
        """Packed tokens, in buffers for as many as the budget allows, and how many there are: tokens, patches."""
        device, gw = planes.device, self.grid[1]
        # The k-th selected patch is the first at which k are selected; past the last, a patch of no tokens.
        k = torch.arange(1, self.selected + 1, device=device)
        ranks = (sides > 0).cumsum(0)
        patch_id = torch.searchsorted(ranks, k)
        n = F.pad(sides, (0, 1))[patch_id]
        cu_seqlens = F.pad((n * n).cumsum(0), (1, 0))
        counts = torch.stack((cu_seqlens[-1], ranks[-1]))
        # Of each token: its patch, its cell, and the pixels of that.
        t = torch.arange(self.budget, device=device)
        of = torch.searchsorted(cu_seqlens[1:], t, right=True).clamp(max=self.selected - 1)
        n, within, patch = n[of].clamp(min=1), t - cu_seqlens[of], patch_id[of].clamp(max=self.patches - 1)
        top, bottom = self.cell(patch // gw, within // n, n, self.height)
        left, right = self.cell(patch % gw, within % n, n, self.width)
        # As many pixels of each as the largest cell has, those outside weighted with 0.
        step = torch.arange(self.extent, device=device)
        ys, xs = top[:, None] + step, left[:, None] + step
        outside = (ys >= bottom[:, None])[:, :, None] | (xs >= right[:, None])[:, None]
        at = ys.clamp(max=self.height - 1)[:, :, None] * self.width + xs.clamp(max=self.width - 1)[:, None]
        sums = planes.flatten(1)[:, at].masked_fill(outside, 0).sum((-2, -1))
        absent = t >= counts[0]
        means = (sums / ((bottom - top) * (right - left))).masked_fill(absent, 0)
        center = torch.stack(((top + bottom) / (2 * self.height), (left + right) / (2 * self.width)), 1)
        return means.T.contiguous(), center.masked_fill(absent[:, None], 0), cu_seqlens, patch_id, counts

    def cell(self, patch, c, n, size):
        """Start and end of cell `c` of `n` along an axis of `size` pixels; cells that hold no token end up anywhere within it."""
        start = patch * self.patch
        length = (size - start).clamp(max=self.patch)
        c = torch.minimum(c, n - 1)
        return start + c * length // n, start + ((c + 1) * length + n - 1) // n

    def forward(self, rgb):
        planes = self.textures(rgb)
        features = self.features(planes)
        entropy, salience = self.entropy(rgb), self.salience(features)
        relevance = self.relevance(entropy, salience)
        sides = self.allocate(relevance)
        tokens, position, cu_seqlens, patch_id, counts = self.compress(planes, sides)
        return {
            "tokens": tokens,
            "position": position,
            "cu_seqlens": cu_seqlens.int(),
            "patch_id": patch_id.int(),
            "counts": counts.int(),
            "sides": sides.int(),
            "relevance": relevance,
            "entropy": entropy,
            "salience": salience,
            "features": features.contiguous(),
        }


def trimmed(results):
    """Results on the host as `docs/spec.md` has them, without what their buffers do not fill."""
    results = {name: value.cpu() for name, value in results.items()}
    tokens, selected = results.pop("counts").tolist()
    for name, length in (("tokens", tokens), ("position", tokens), ("cu_seqlens", selected + 1), ("patch_id", selected)):
        results[name] = results[name][:length]
    return results
