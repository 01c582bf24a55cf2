//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (2011, "Parallel
//! random numbers: as easy as 1, 2, 3").

/// Returns the four random words of a counter and a key. There is no state: equal arguments give
/// equal words.
///
/// ```
/// use thalweg_vision::augment::philox;
///
/// // The known answers that the authors publish.
/// assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
/// ```
#[must_use]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..10 {
        let (left, right) = (0xd251_1f53 * u64::from(a), 0xcd9e_8d57 * u64::from(c));
        [a, b, c, d] = [(right >> 32) as u32 ^ b ^ k, right as u32, (left >> 32) as u32 ^ d ^ l, left as u32];
        (k, l) = (k.wrapping_add(0x9e37_79b9), l.wrapping_add(0xbb67_ae85));
    }
    [a, b, c, d]
}

/// Returns the four numbers of a draw for an image. Each is in [0, 1) and a multiple of 2^-24.
pub(super) fn draw(seed: u64, epoch: u32, index: u64, draw: u32) -> [f64; 4] {
    let counter = [index as u32, (index >> 32) as u32, epoch, draw];
    philox(counter, [seed as u32, (seed >> 32) as u32]).map(|word| f64::from(word >> 8) / f64::from(1 << 24))
}
