use vocabulary::integers::{RESULTS, integers};

use super::{noise, on_each_device};

/// Computes the results of the kernel, by other means than the CPU device where it has code of its
/// own.
fn expected(a: u32, b: u32, c: u32) -> [u32; RESULTS as usize] {
    let sum = |x: &[i64], y: &[i64], c: i64| x.iter().zip(y).map(|(x, y)| x * y).sum::<i64>() + c;
    let bytes = |v: u32| v.to_le_bytes().map(i64::from);
    let signed = |v: u32| v.to_le_bytes().map(|v| i64::from(v as i8));
    let halves = |v: u32| [v as u16, (v >> 16) as u16].map(i64::from);
    let signed_halves = |v: u32| [v as i16, (v >> 16) as i16].map(i64::from);
    let (plus, signed_plus) = (i64::from(c), i64::from(c as i32));
    let choice: Vec<u8> = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).collect();
    let perm = [0, 1, 2, 3].map(|k| {
        let digit = c >> (4 * k) & 15;
        let byte = choice[digit as usize % 8];
        if digit < 8 {
            byte
        } else if byte < 128 {
            0
        } else {
            255
        }
    });
    let (left, right) = match c % 32 {
        0 => (b, a),
        by => (b << by | a >> (32 - by), a >> by | b << (32 - by)),
    };
    let (x, y) = (u128::from(a) << 32 | u128::from(b), u128::from(b) << 32 | u128::from(c));
    let bit = |i: u32| a >> i & 1;
    let clamped =
        |low: i32, high: i32| low.clamp(0, 255) as u32 + 256 * high.clamp(0, 255) as u32 + 65536 * (c % 65536);
    [
        sum(&bytes(a), &bytes(b), plus) as u32,
        sum(&signed(a), &signed(b), signed_plus) as u32,
        sum(&halves(a), &bytes(b)[..2], plus) as u32,
        sum(&halves(a), &bytes(b)[2..], plus) as u32,
        sum(&signed_halves(a), &signed(b)[..2], signed_plus) as u32,
        sum(&signed_halves(a), &signed(b)[2..], signed_plus) as u32,
        sum(&signed_halves(a), &bytes(b)[..2], signed_plus) as u32,
        sum(&signed_halves(a), &bytes(b)[2..], signed_plus) as u32,
        u32::from_le_bytes(perm),
        clamped(a as i32, b as i32),
        clamped(a as i32 >> 23, b as i32 >> 23),
        left,
        right,
        (u64::from(a) * u64::from(b) / (1 << 32)) as u32,
        (i64::from(a as i32) * i64::from(b as i32)).div_euclid(1 << 32) as u32,
        ((x * y) >> 64) as u32,
        ((x * y) >> 96) as u32,
        (0..32).map(bit).sum(),
        (0..32).rev().take_while(|i| bit(*i) == 0).count() as u32,
        (0..32).take_while(|i| bit(*i) == 0).count() as u32,
        (0..32).map(|i| bit(i) << (31 - i)).sum(),
        u32::from_be_bytes(a.to_le_bytes()),
        (0..32).map(|i| bit(i) << ((i + c % 32) % 32)).sum(),
        i64::from(a).abs_diff(i64::from(b)) as u32,
    ]
}

#[test]
fn operations_on_integers() {
    let mut noise = noise(1);
    let corners = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0x8080_8080, u32::MAX];
    let mut triples: Vec<[u32; 3]> = Vec::new();
    for a in corners {
        for b in corners {
            triples.extend(corners.map(|c| [a, b, c]));
        }
    }
    triples.extend((0..20_000).map(|_| [0; 3].map(|_| noise())));
    let n = triples.len();
    let column = |k: usize| -> Vec<u32> { triples.iter().map(|triple| triple[k]).collect() };
    on_each_device(|s| {
        let [a, b, c] = [0, 1, 2].map(|k| s.upload_blocking(&column(k)).unwrap());
        let mut results = s.alloc::<u32>(n * RESULTS as usize).unwrap();
        integers(s, n as u32, &a, &b, &c, &mut results).unwrap();
        let results = s.read_blocking(&results).unwrap();
        for (&[a, b, c], got) in triples.iter().zip(results.chunks(RESULTS as usize)) {
            assert_eq!(got, expected(a, b, c), "{a:#x}, {b:#x}, {c:#x} on {}", s.device());
        }
    });
}
