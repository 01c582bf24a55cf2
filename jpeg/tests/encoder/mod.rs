//! Writes sequential files of random coefficients: any size, sampling, restart interval, Huffman
//! tables and scans, which no encoder of photographs gives.

/// What a file is like.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) height: u16,
    pub(crate) width: u16,
    /// The sampling factors of each component, across and down. One component is gray.
    pub(crate) factors: Vec<[u8; 2]>,
    /// The units between two restarts, or 0.
    pub(crate) restart: u16,
    /// The number of AC coefficients of a block is below this.
    pub(crate) coefficients: u32,
    pub(crate) rgb: bool,
    pub(crate) seed: u64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(n)) as u32
    }
}

/// A Huffman table: the code and the length of each symbol, and the segment that declares it.
struct Table {
    codes: Vec<(u32, u32)>,
    declared: Vec<u8>,
}

impl Table {
    /// Makes a random table for these symbols: splits random leaves of a tree.
    fn new(random: &mut Random, mut symbols: Vec<u8>) -> Self {
        let mut leaves = vec![1u32, 1];
        while leaves.len() <= symbols.len() {
            let at = random.below(leaves.len() as u32) as usize;
            // Long codes are rare in a tree that is split evenly, so prefer them now and then.
            if leaves[at] < 16 && (leaves[at] < 9 || random.below(2) == 0) {
                leaves[at] += 1;
                leaves.push(leaves[at]);
            }
        }
        // The last code would have ones only, and the format does not allow it.
        leaves.sort_unstable();
        leaves.pop();
        for i in (1..symbols.len()).rev() {
            symbols.swap(i, random.below(i as u32 + 1) as usize);
        }
        let mut table = Self { codes: vec![(0, 0); 256], declared: vec![0; 16] };
        let (mut code, mut length) = (0, 1);
        for (symbol, leaf) in symbols.iter().zip(leaves) {
            code <<= leaf - length;
            length = leaf;
            table.codes[usize::from(*symbol)] = (code, length);
            table.declared[length as usize - 1] += 1;
            code += 1;
        }
        table.declared.extend(symbols);
        table
    }
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    word: u32,
    filled: u32,
}

impl Bits {
    fn push(&mut self, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            self.word = self.word << 1 | (value >> bit & 1);
            self.filled += 1;
            if self.filled == 8 {
                self.bytes.push(self.word as u8);
                if self.word as u8 == 0xFF {
                    self.bytes.push(0);
                }
                (self.word, self.filled) = (0, 0);
            }
        }
    }
    fn symbol(&mut self, table: &Table, symbol: u32) {
        let (code, length) = table.codes[symbol as usize];
        self.push(code, length);
    }
    fn value(&mut self, value: i32, size: u32) {
        self.push(if value < 0 { value - 1 } else { value } as u32, size);
    }
    fn align(&mut self) {
        self.push(0x7F, (8 - self.filled) % 8);
    }
}

/// The bits of the magnitude of a value.
fn size(value: i32) -> u32 {
    32 - value.unsigned_abs().leading_zeros()
}

/// How the scans of a file are laid out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// The components of each scan. None means one scan of all.
    pub(crate) scans: Vec<Vec<usize>>,
    /// The transform that a segment of Adobe says.
    pub(crate) adobe: Option<u8>,
    /// Segments and other bytes before each scan header.
    pub(crate) before_scan: Vec<u8>,
    /// Bytes after the last scan.
    pub(crate) after: Vec<u8>,
}

pub(crate) fn encode(kind: &Kind) -> Vec<u8> {
    encode_as(kind, &Layout::default())
}

/// The coefficients of a block in zigzag order.
type Block = [i32; 64];

/// Makes the coefficients of each block of a component, row by row, with those of the padding.
fn blocks(random: &mut Random, kind: &Kind, count: usize) -> Vec<Block> {
    let mut block = || {
        let mut block = [0; 64];
        // The DC value stays between -60 and 60, so that samples are not all clamped.
        block[0] = random.below(121) as i32 - 60;
        let mut next = 1;
        for _ in 0..random.below(kind.coefficients) {
            next += (random.below(8) * random.below(8)) as usize;
            if next > 63 {
                break;
            }
            let most = random.below(6);
            let magnitude = 1 + random.below(1 << most) as i32;
            block[next] = if random.below(2) == 0 { magnitude } else { -magnitude };
            next += 1;
        }
        block
    };
    (0..count).map(|_| block()).collect()
}

impl Bits {
    fn block(&mut self, block: &Block, last: &mut i32, dc: &Table, ac: &Table) {
        let difference = block[0] - *last;
        *last = block[0];
        self.symbol(dc, size(difference));
        self.value(difference, size(difference));
        let mut zeros = 0;
        for &value in &block[1..] {
            if value == 0 {
                zeros += 1;
                continue;
            }
            for _ in 0..zeros / 16 {
                self.symbol(ac, 0xF0);
            }
            self.symbol(ac, (zeros % 16) << 4 | size(value));
            self.value(value, size(value));
            zeros = 0;
        }
        if zeros > 0 {
            self.symbol(ac, 0);
        }
    }
}

pub(crate) fn encode_as(kind: &Kind, layout: &Layout) -> Vec<u8> {
    let mut random = Random(kind.seed | 1);
    let mut file = vec![0xFF, 0xD8];
    let segment = |file: &mut Vec<u8>, marker: u8, body: &[u8]| {
        file.extend([0xFF, marker]);
        file.extend((body.len() as u16 + 2).to_be_bytes());
        file.extend(body);
    };
    if let Some(transform) = layout.adobe {
        segment(&mut file, 0xEE, &[&b"Adobe\0\x64\0\0\0\0"[..], &[transform]].concat());
    }
    let dc: Vec<_> = (0..2).map(|_| Table::new(&mut random, (0..=11).collect())).collect();
    let every = (0..16u8).flat_map(|run| (1..=10u8).map(move |size| run << 4 | size)).chain([0x00, 0xF0]);
    let ac: Vec<_> = (0..2).map(|_| Table::new(&mut random, every.clone().collect())).collect();
    for (class, tables) in [(0, &dc), (0x10, &ac)] {
        for (i, table) in tables.iter().enumerate() {
            segment(&mut file, 0xC4, &[&[class | i as u8], &table.declared[..]].concat());
        }
    }
    for i in 0..2 {
        let steps: Vec<u8> = (0..64).map(|_| 1 + random.below(20) as u8).collect();
        segment(&mut file, 0xDB, &[&[i], &steps[..]].concat());
    }
    let count = kind.factors.len();
    let id = |i: usize| if kind.rgb { b"RGBA"[i] } else { i as u8 + 1 };
    let mut frame = vec![8];
    frame.extend(kind.height.to_be_bytes());
    frame.extend(kind.width.to_be_bytes());
    frame.push(count as u8);
    for (i, [h, v]) in kind.factors.iter().enumerate() {
        frame.extend([id(i), h << 4 | v, u8::from(i > 0)]);
    }
    segment(&mut file, 0xC0, &frame);
    if kind.restart > 0 {
        segment(&mut file, 0xDD, &kind.restart.to_be_bytes());
    }

    let factors: Vec<[usize; 2]> = match &kind.factors[..] {
        [_] => vec![[1, 1]],
        all => all.iter().map(|f| f.map(usize::from)).collect(),
    };
    let most = |axis: usize| factors.iter().map(|f| f[axis]).max().unwrap();
    let [width, height] = [kind.width, kind.height].map(usize::from);
    let [across, down] = [width.div_ceil(8 * most(0)), height.div_ceil(8 * most(1))];
    let all: Vec<Vec<Block>> = factors.iter().map(|[h, v]| blocks(&mut random, kind, across * down * h * v)).collect();
    let whole = vec![(0..count).collect::<Vec<_>>()];
    for scan in if layout.scans.is_empty() { &whole } else { &layout.scans } {
        file.extend(&layout.before_scan);
        let mut header = vec![scan.len() as u8];
        // The first component has DC table 0 and AC table 1, and the others the other way round.
        scan.iter().for_each(|&i| header.extend([id(i), if i > 0 { 0x10 } else { 0x01 }]));
        header.extend([0, 63, 0]);
        segment(&mut file, 0xDA, &header);
        // The units of the scan: component and block of each of their blocks.
        let mut units: Vec<Vec<(usize, usize)>> = Vec::new();
        if let [only] = scan[..] {
            let [h, v] = factors[only];
            let (columns, rows) = ((width * h).div_ceil(8 * most(0)), (height * v).div_ceil(8 * most(1)));
            let places = (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x)));
            units.extend(places.map(|(y, x)| vec![(only, y * across * h + x)]));
        } else {
            for (y, x) in (0..down).flat_map(|y| (0..across).map(move |x| (y, x))) {
                let of = |i: usize| {
                    let [h, v] = factors[i];
                    (0..h * v).map(move |b| (i, (y * v + b / h) * across * h + x * h + b % h))
                };
                units.push(scan.iter().flat_map(|&i| of(i)).collect());
            }
        }
        let mut bits = Bits::default();
        let mut last = vec![0; count];
        for (number, unit) in units.iter().enumerate() {
            let restart = usize::from(kind.restart);
            if restart > 0 && number > 0 && number % restart == 0 {
                bits.align();
                bits.bytes.extend([0xFF, 0xD0 + ((number / restart - 1) % 8) as u8]);
                last.fill(0);
            }
            for &(i, block) in unit {
                let table = usize::from(i > 0);
                bits.block(&all[i][block], &mut last[i], &dc[table], &ac[1 - table]);
            }
        }
        bits.align();
        file.extend(bits.bytes);
    }
    file.extend(&layout.after);
    file.extend([0xFF, 0xD9]);
    file
}
