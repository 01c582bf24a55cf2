//! A plain decoder of baseline files: one bit, one block and one pixel after another. It is written
//! from ITU-T T.81 and from the description of libjpeg's integers, and trusts its input.

use std::collections::HashMap;

/// The pixels of a file, [H, W, 3], without orientation, with height and width.
pub(crate) fn decode(file: &[u8]) -> (usize, usize, Vec<u8>) {
    let mut decoder = Decoder::default();
    decoder.file(file);
    let planes = decoder.planes();
    decoder.pixels(&planes)
}

#[derive(Clone, Default)]
struct Component {
    id: u8,
    h: usize,
    v: usize,
    quantization: usize,
    dc: usize,
    ac: usize,
}

#[derive(Default)]
struct Decoder {
    height: usize,
    width: usize,
    restart: usize,
    components: Vec<Component>,
    quantization: HashMap<usize, Vec<i32>>,
    /// By class and number: the symbol of a length and a code.
    huffman: HashMap<(usize, usize), HashMap<(usize, u32), u8>>,
    data: Vec<u8>,
    /// The transform that Adobe's segment says.
    adobe: Option<u8>,
}

/// The row and the column of each coefficient in the order of the file: along the diagonals, first
/// to the right.
fn zigzag() -> Vec<usize> {
    let mut order: Vec<(usize, usize)> = (0..64).map(|i| (i / 8, i % 8)).collect();
    order.sort_by_key(|&(r, c)| (r + c, if (r + c) % 2 == 0 { c } else { r }));
    order.into_iter().map(|(r, c)| 8 * r + c).collect()
}

struct Bits<'a> {
    data: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn bit(&mut self) -> u32 {
        let byte = self.data.get(self.at / 8).copied().unwrap_or(0);
        self.at += 1;
        u32::from(byte >> (7 - (self.at - 1) % 8) & 1)
    }
    fn number(&mut self, bits: u8) -> i32 {
        (0..bits).fold(0, |v, _| v << 1 | self.bit() as i32)
    }
    fn symbol(&mut self, table: &HashMap<(usize, u32), u8>) -> u8 {
        let mut code = 0;
        for length in 1..=16 {
            code = code << 1 | self.bit();
            if let Some(symbol) = table.get(&(length, code)) {
                return *symbol;
            }
        }
        panic!("no code of the table");
    }
    /// A value of `bits` bits with its sign, T.81 F.2.2.1.
    fn value(&mut self, bits: u8) -> i32 {
        let v = self.number(bits);
        if bits > 0 && v < 1 << (bits - 1) { v - (1 << bits) + 1 } else { v }
    }
}

impl Decoder {
    fn file(&mut self, file: &[u8]) {
        let mut at = 2;
        loop {
            let marker = file[at + 1];
            let length = usize::from(file[at + 2]) << 8 | usize::from(file[at + 3]);
            let mut body = &file[at + 4..at + 2 + length];
            at += 2 + length;
            match marker {
                0xDB => {
                    while !body.is_empty() {
                        let wide = body[0] >> 4 == 1;
                        let values = (0..64).map(|i| match wide {
                            true => i32::from(body[1 + 2 * i]) << 8 | i32::from(body[2 + 2 * i]),
                            false => i32::from(body[1 + i]),
                        });
                        self.quantization.insert(usize::from(body[0] & 15), values.collect());
                        body = &body[1 + if wide { 128 } else { 64 }..];
                    }
                }
                0xC4 => {
                    while !body.is_empty() {
                        let mut table = HashMap::new();
                        let (mut code, mut next) = (0u32, 17);
                        for length in 1..=16 {
                            for _ in 0..body[length] {
                                table.insert((length, code), body[next]);
                                code += 1;
                                next += 1;
                            }
                            code <<= 1;
                        }
                        self.huffman.insert((usize::from(body[0] >> 4), usize::from(body[0] & 15)), table);
                        body = &body[next..];
                    }
                }
                0xC0 | 0xC1 => {
                    self.height = usize::from(body[1]) << 8 | usize::from(body[2]);
                    self.width = usize::from(body[3]) << 8 | usize::from(body[4]);
                    for c in body[6..].chunks(3) {
                        let (h, v) = (usize::from(c[1] >> 4), usize::from(c[1] & 15));
                        self.components.push(Component { id: c[0], h, v, quantization: c[2].into(), dc: 0, ac: 0 });
                    }
                    if let [only] = &mut self.components[..] {
                        (only.h, only.v) = (1, 1);
                    }
                }
                0xEE if body.starts_with(b"Adobe") => self.adobe = Some(body[11]),
                0xDD => self.restart = usize::from(body[0]) << 8 | usize::from(body[1]),
                0xDA => {
                    for (c, s) in self.components.iter_mut().zip(body[1..].chunks(2)) {
                        assert_eq!(c.id, s[0]);
                        (c.dc, c.ac) = (usize::from(s[1] >> 4), usize::from(s[1] & 15));
                    }
                    self.data = file[at..].to_vec();
                    return;
                }
                _ => {}
            }
        }
    }

    fn factors(&self) -> (usize, usize) {
        let most = |f: fn(&Component) -> usize| self.components.iter().map(f).max().unwrap();
        (most(|c| c.h), most(|c| c.v))
    }

    /// The samples of each component with the width of its rows, padded to whole blocks.
    fn planes(&self) -> Vec<(usize, Vec<u8>)> {
        let (hmax, vmax) = self.factors();
        let (across, down) = (self.width.div_ceil(8 * hmax), self.height.div_ceil(8 * vmax));
        let mut planes: Vec<_> =
            self.components.iter().map(|c| (8 * c.h * across, vec![0; 64 * c.h * c.v * across * down])).collect();
        // The data between two restarts, without stuffing.
        let mut segments = vec![Vec::new()];
        let mut bytes = self.data.iter();
        while let Some(&byte) = bytes.next() {
            match (byte, (byte == 0xFF).then(|| bytes.next().copied())) {
                (_, None) => segments.last_mut().unwrap().push(byte),
                (_, Some(Some(0))) => segments.last_mut().unwrap().push(0xFF),
                (_, Some(Some(0xD0..=0xD7))) => segments.push(Vec::new()),
                _ => break,
            }
        }
        let (order, mut unit) = (zigzag(), 0);
        for segment in segments {
            let mut bits = Bits { data: &segment, at: 0 };
            let mut predictions = vec![0; self.components.len()];
            let units = if self.restart == 0 { across * down } else { self.restart };
            for _ in 0..units.min(across * down - unit) {
                for (c, component) in self.components.iter().enumerate() {
                    for block in 0..component.h * component.v {
                        let mut coefficients = [0; 64];
                        let size = bits.symbol(&self.huffman[&(0, component.dc)]);
                        predictions[c] += bits.value(size);
                        coefficients[0] = predictions[c];
                        let mut k = 1;
                        while k < 64 {
                            let symbol = bits.symbol(&self.huffman[&(1, component.ac)]);
                            let (run, size) = (usize::from(symbol >> 4), symbol & 15);
                            match (run, size) {
                                (15, 0) => k += 16,
                                (_, 0) => break,
                                _ => {
                                    coefficients[order[k + run]] = bits.value(size);
                                    k += run + 1;
                                }
                            }
                        }
                        for (k, &place) in order.iter().enumerate() {
                            coefficients[place] *= self.quantization[&component.quantization][k];
                        }
                        let samples = inverse_dct(&coefficients);
                        let (stride, plane) = &mut planes[c];
                        let y = 8 * (unit / across * component.v + block / component.h);
                        let x = 8 * (unit % across * component.h + block % component.h);
                        for (row, samples) in samples.chunks(8).enumerate() {
                            plane[(y + row) * *stride + x..][..8].copy_from_slice(samples);
                        }
                    }
                }
                unit += 1;
            }
        }
        planes
    }

    /// Enlarges the components and converts them.
    fn pixels(&self, planes: &[(usize, Vec<u8>)]) -> (usize, usize, Vec<u8>) {
        let (hmax, vmax) = self.factors();
        let full: Vec<Vec<i32>> = self
            .components
            .iter()
            .zip(planes)
            .map(|(c, (stride, plane))| {
                let (rows, columns) = ((self.height * c.v).div_ceil(vmax), (self.width * c.h).div_ceil(hmax));
                let own = (0..rows).map(|y| (0..columns).map(|x| i32::from(plane[y * stride + x])).collect()).collect();
                enlarge(own, hmax / c.h, vmax / c.v, self.height, self.width)
            })
            .collect();
        let mut rgb = Vec::new();
        for i in 0..self.height * self.width {
            let ids: Vec<u8> = self.components.iter().map(|c| c.id).collect();
            match &full[..] {
                [gray] => rgb.extend([gray[i] as u8; 3]),
                [r, g, b] if ids == *b"RGB" => rgb.extend([r[i] as u8, g[i] as u8, b[i] as u8]),
                [y, cb, cr] => rgb.extend(from_ycbcr(y[i], cb[i], cr[i])),
                [c, m, y, k] => {
                    // The values are those of inks, inverted, so they are amounts of light.
                    let inks = match self.adobe {
                        None | Some(0) => [c[i], m[i], y[i]],
                        _ => from_ycbcr(c[i], m[i], y[i]).map(|v| 255 - i32::from(v)),
                    };
                    rgb.extend(inks.map(|ink| (f64::from(ink * k[i]) / 255.0).round() as u8));
                }
                _ => unreachable!(),
            }
        }
        (self.height, self.width, rgb)
    }
}

/// Converts with the constants of BT.601 times 2^16, rounded.
fn from_ycbcr(y: i32, cb: i32, cr: i32) -> [u8; 3] {
    let (cb, cr) = (cb - 128, cr - 128);
    let fixed = |c: f64| (c * 65536.0 + 0.5).floor() as i32;
    let r = y + ((fixed(1.402) * cr + 32768) >> 16);
    let g = y + ((-fixed(0.34414) * cb - fixed(0.71414) * cr + 32768) >> 16);
    let b = y + ((fixed(1.772) * cb + 32768) >> 16);
    [r, g, b].map(|v| v.clamp(0, 255) as u8)
}

/// Enlarges a plane by `h` across and `v` down, as libjpeg does: rows first where it interpolates
/// both ways.
fn enlarge(plane: Vec<Vec<i32>>, h: usize, v: usize, height: usize, width: usize) -> Vec<i32> {
    let (rows, columns) = (plane.len(), plane[0].len());
    let smooth_across = h == 2 && v <= 2 && columns > 2;
    let smooth_down = v == 2 && (h == 1 || smooth_across);
    // Three quarters of a sample and one of its neighbor: before it in even places, else after it.
    let near = |i: usize, len: usize| {
        let neighbor = if i.is_multiple_of(2) { (i / 2).saturating_sub(1) } else { (i / 2 + 1).min(len - 1) };
        (i / 2, neighbor)
    };
    let mut out = Vec::new();
    for y in 0..height {
        // Sums of 4 in weight where two rows count.
        let line: Vec<i32> = if smooth_down {
            let (a, b) = near(y, rows);
            plane[a].iter().zip(&plane[b]).map(|(a, b)| 3 * a + b).collect()
        } else {
            plane[y / v].clone()
        };
        for x in 0..width {
            let odd = (x % 2) as i32;
            out.push(match (smooth_across, smooth_down) {
                (true, down) => {
                    let (a, b) = near(x, columns);
                    let sum = 3 * line[a] + line[b];
                    if down { (sum + 8 - odd) >> 4 } else { (sum + 1 + odd) >> 2 }
                }
                (false, true) => (line[x / h] + 1 + (y % 2) as i32) >> 2,
                (false, false) => line[x / h],
            });
        }
    }
    out
}

/// libjpeg's accurate integer inverse DCT, with 128 added and clamped.
fn inverse_dct(coefficients: &[i32; 64]) -> Vec<u8> {
    let mut work = [0i64; 64];
    for column in 0..8 {
        let values = std::array::from_fn(|row| i64::from(coefficients[8 * row + column]));
        for (row, v) in one_dimension(values).into_iter().enumerate() {
            work[8 * row + column] = (v + (1 << 10)) >> 11;
        }
    }
    let rows = work.chunks(8).flat_map(|row| one_dimension(std::array::from_fn(|i| row[i])));
    rows.map(|v| (((v + (1 << 17)) >> 18) + 128).clamp(0, 255) as u8).collect()
}

/// The inverse DCT of Loeffler, Ligtenberg and Moschytz with constants of 13 bits.
fn one_dimension(x: [i64; 8]) -> [i64; 8] {
    let c = |v: f64| (v * 8192.0 + 0.5).floor() as i64;
    let common = (x[2] + x[6]) * c(0.541_196_1);
    let e2 = common - x[6] * c(1.847_759_065);
    let e3 = common + x[2] * c(0.765_366_865);
    let (e0, e1) = ((x[0] + x[4]) << 13, (x[0] - x[4]) << 13);
    let even = [e0 + e3, e1 + e2, e1 - e2, e0 - e3];
    let all = (x[7] + x[3] + x[5] + x[1]) * c(1.175_875_602);
    let (p, q) = (all - (x[7] + x[3]) * c(1.961_570_56), all - (x[5] + x[1]) * c(0.390_180_644));
    let (s, t) = (-(x[7] + x[1]) * c(0.899_976_223), -(x[5] + x[3]) * c(2.562_915_447));
    let odd = [
        x[1] * c(1.501_321_11) + s + q,
        x[3] * c(3.072_711_026) + t + p,
        x[5] * c(2.053_119_869) + t + q,
        x[7] * c(0.298_631_336) + s + p,
    ];
    std::array::from_fn(|i| if i < 4 { even[i] + odd[i] } else { even[7 - i] - odd[7 - i] })
}
