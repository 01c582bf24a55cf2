//! The kernels that turn coded data into coefficients.
//!
//! ```text
//! synchronize:  for every block of 128 pieces, in parallel:
//!                   start = the state at the start of a unit, for each piece
//!                   repeat: end = decode(piece, start); start = end of the piece before; until none changes
//! settle:       for every image: repeat up to 16 times for every block of pieces whose predecessor ended elsewhere than assumed:
//!                   decode its pieces again, until one ends as before
//! offsets:      for every image: sums of coefficients and of DC differences over the pieces before
//! coefficients: for every piece, in parallel: decode(piece, start), and on to the end of the last block that starts in it;
//!                   write each block that starts in it
//! ```
//!
//! - **A piece ends with a state of one word**: the bits that its last code takes from the next
//!   piece, the block of the unit, and the place in the block. Two decoders with equal states
//!   continue alike, so comparing states is enough.
//! - **Sums of DC differences come with the counts**: a scan over pieces then gives each piece its
//!   DC values, and no other pass over the coefficients is needed.
//! - **A block of coefficients is written once, as a whole line** of 128 bytes, by all threads of a
//!   warp. A thread keeps its block in shared memory until it is complete. Stores of 2 bytes, to
//!   memory that was set to 0 before, made the device read and write each sector of it once more.
//! - **Between two votes a thread decodes one code.** With a loop of several codes, in which a
//!   thread with a complete block waits, the assembler for `sm_90` (CUDA 13.0) let lanes vote apart
//!   from one another, and blocks were lost.

use thalweg_simt::{Atomic, Cooperative, In, InOut, SharedMemory, kernel};

use super::decode::{Cursor, Decoder, Found, Outcome, State};
use super::record::{IMAGE_WORDS, Record, SEGMENT_WORDS};
use super::{PIECE_BITS, PIECES_OF_BLOCK, TABLE_WORDS, TABLES};

/// The threads of a block of [`repair_sync_points`] and [`offsets`].
const THREADS: u32 = 256;
/// The words of all Huffman tables of an image.
const ALL_TABLES: u32 = TABLES * TABLE_WORDS;
/// The words of `states` for each piece: the state that it started with, and the one it ended with.
const STATES: u32 = 2;
/// The words of `counts` and `places` for each piece: coefficients, and DC sums of 3 components.
const COUNTS: u32 = 4;
/// The words of a thread of [`coefficients`] in shared memory: a block of coefficients, and one
/// more, so that words of one place lie in different banks.
const OWN: u32 = 33;
/// The bit of `status` for data that does not fit its tables.
const BROKEN: u32 = 1;
/// The bit of `status` for data that ends too early.
const SHORT: u32 = 2;
/// The bit of `status` for data whose pieces did not fall into step within [`ROUNDS`] rounds.
const APART: u32 = 4;
/// The most rounds of [`repair_sync_points`]. Data of photographs needs 1 or 2. Without a bound,
/// data that never falls into step would take time in proportion to the square of its length.
const ROUNDS: u32 = 16;

/// Copies the Huffman tables of an image into shared memory.
///
/// # Safety
/// All threads of the block call it. The window has [`ALL_TABLES`] words.
#[inline(always)]
unsafe fn load_tables(
    cx: impl Cooperative,
    image: Record,
    huffman: In<u32>,
    tables: u32,
    window: SharedMemory<u32>,
    threads: u32,
) {
    // SAFETY: Word 12 is inside the record. `i` is below the size of the window, and `huffman` has
    // `tables` tables: the index is clamped to the last word.
    unsafe {
        let first = image.get(cx, 12).min(tables) * TABLE_WORDS;
        let mut i = cx.rank();
        while i < ALL_TABLES {
            cx.shared_set(window, i, huffman.get(cx, (first + i).min(tables * TABLE_WORDS - 1)));
            i += threads;
        }
        cx.barrier();
    }
}

/// Writes what decoding a piece gave.
///
/// # Safety
/// The buffers have rows for piece `piece`, and no other thread accesses them.
#[inline(always)]
unsafe fn keep(
    cx: impl Cooperative,
    states: InOut<u32>,
    counts: InOut<u32>,
    piece: u32,
    start: State,
    outcome: &Outcome,
) {
    // SAFETY: The caller promises that the rows are there.
    unsafe {
        states.set(cx, STATES * piece, start.0);
        states.set(cx, STATES * piece + 1, outcome.end.0);
        counts.set(cx, COUNTS * piece, outcome.coefficients);
        // A loop over the array would put it into local memory.
        counts.set(cx, COUNTS * piece + 1, outcome.sums[0]);
        counts.set(cx, COUNTS * piece + 2, outcome.sums[1]);
        counts.set(cx, COUNTS * piece + 3, outcome.sums[2]);
    }
}

kernel! {
    /// Decodes every piece, and each again until it starts where the piece before it in its block
    /// ended. `pieces` [P] is the segment of each piece, `most` the largest number of pieces of an
    /// image. `states` [P, 2] and `counts` [P, 4] are written.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn find_sync_points(
        cx: impl Cooperative, image_count: u32, segment_count: u32, piece_count: u32, words: u32, most: u32, table_count: u32,
        images: In<u32>, segments: In<u32>, pieces: In<u32>, huffman: In<u32>, data: In<u32>,
        states: InOut<u32>, counts: InOut<u32>,
    )
    require {
        image_count >= 1, segment_count >= 1, table_count >= 1, words >= 1, most <= piece_count,
        piece_count <= 1 << 28,
        images.len() == image_count * IMAGE_WORDS,
        segments.len() == segment_count * SEGMENT_WORDS,
        pieces.len() == piece_count,
        huffman.len() == table_count * TABLE_WORDS,
        data.len() == words,
        states.len() == piece_count * STATES,
        counts.len() == piece_count * COUNTS,
    }
    grid(most.div_ceil(PIECES_OF_BLOCK), image_count) block(PIECES_OF_BLOCK) shared((ALL_TABLES + PIECES_OF_BLOCK + 3) * 4)
    {
        let image = Record::new(images, cx.block_idx().y, IMAGE_WORDS);
        let rank = cx.rank();
        let tables = cx.shared::<u32>(0);
        let ends = cx.shared::<u32>(ALL_TABLES * 4);
        let changes = cx.shared::<u32>((ALL_TABLES + PIECES_OF_BLOCK) * 4);
        load_tables(cx, image, huffman, table_count, tables, PIECES_OF_BLOCK);

        let index = cx.block_idx().x * PIECES_OF_BLOCK + rank;
        let first = image.get(cx, 10).min(piece_count);
        // Threads past the last piece take part in the barriers only.
        let present = index < image.get(cx, 11).min(piece_count - first);
        let piece = (first + index).min(piece_count - 1);
        let segment = Record::new(segments, pieces.get(cx, piece).min(segment_count - 1), SEGMENT_WORDS);
        let within = piece.saturating_sub(segment.get(cx, 2));
        let decoder = Decoder::new(cx, image, segment, within, data, words);
        // The first piece of a segment starts where a unit starts, and so does every guess.
        let chained = present && within > 0 && rank > 0;
        let mut start = State::START;
        let mut outcome = Outcome { end: State::START, coefficients: 0, sums: [0; 3], broken: false };
        if present {
            outcome = decoder.run(cx, tables, start);
        }
        cx.shared_set(ends, rank, outcome.end.0);
        if rank < 3 {
            cx.shared_set(changes, rank, 0);
        }
        // After round r, the first r + 1 pieces are right, so there are at most 128 rounds.
        let mut round = 0;
        while round < PIECES_OF_BLOCK {
            cx.barrier();
            let before = if chained { State(cx.shared_get(ends, rank.max(1) - 1)) } else { start };
            cx.barrier();
            if before != start {
                start = before;
                outcome = decoder.run(cx, tables, start);
                cx.shared_set(ends, rank, outcome.end.0);
                cx.shared_add(changes, round % 3, 1);
            }
            if rank == 0 {
                cx.shared_set(changes, (round + 1) % 3, 0);
            }
            cx.barrier();
            if cx.shared_get(changes, round % 3) == 0 {
                break;
            }
            round += 1;
        }
        if present {
            keep(cx, states, counts, piece, start, &outcome);
        }
    }
}

kernel! {
    /// Decodes pieces again where the first piece of a block does not start where the piece before
    /// it ended, until every piece of the image starts where its predecessor ended, or for 16
    /// rounds.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn repair_sync_points(
        cx: impl Cooperative, image_count: u32, segment_count: u32, piece_count: u32, words: u32, table_count: u32,
        images: In<u32>, segments: In<u32>, pieces: In<u32>, huffman: In<u32>, data: In<u32>,
        states: InOut<u32>, counts: InOut<u32>,
    )
    require {
        image_count >= 1, segment_count >= 1, table_count >= 1, words >= 1, piece_count >= 1,
        piece_count <= 1 << 28,
        images.len() == image_count * IMAGE_WORDS,
        segments.len() == segment_count * SEGMENT_WORDS,
        pieces.len() == piece_count,
        huffman.len() == table_count * TABLE_WORDS,
        data.len() == words,
        states.len() == piece_count * STATES,
        counts.len() == piece_count * COUNTS,
    }
    grid(image_count) block(THREADS) shared((ALL_TABLES + 3) * 4)
    {
        let image = Record::new(images, cx.block_idx().x, IMAGE_WORDS);
        let rank = cx.rank();
        let tables = cx.shared::<u32>(0);
        let changes = cx.shared::<u32>(ALL_TABLES * 4);
        if rank < 3 {
            cx.shared_set(changes, rank, 0);
        }
        load_tables(cx, image, huffman, table_count, tables, THREADS);
        let first = image.get(cx, 10).min(piece_count);
        let own = image.get(cx, 11).min(piece_count - first);
        let blocks = own.div_ceil(PIECES_OF_BLOCK);
        // Each round settles at least one block more, so no more rounds than blocks are of use.
        let mut round = 0;
        while round < blocks.min(ROUNDS) {
            // Each thread takes one block of pieces, and then the one 256 blocks further. It reads
            // the state before its block before anyone changes a state. All threads make equally
            // many turns.
            let mut turn = 1;
            while turn < blocks {
                let block = turn + rank;
                let mut index = block.min(blocks) * PIECES_OF_BLOCK;
                let end = if block < blocks { (index + PIECES_OF_BLOCK).min(own) } else { index };
                let mut before = State::START;
                if index < end {
                    before = State(states.get(cx, STATES * (first + index - 1) + 1));
                }
                cx.barrier();
                let mut going = index < end;
                while going {
                    let piece = first + index;
                    let segment = Record::new(segments, pieces.get(cx, piece).min(segment_count - 1), SEGMENT_WORDS);
                    let within = piece.saturating_sub(segment.get(cx, 2));
                    going = within > 0 && before != State(states.get(cx, STATES * piece));
                    if going {
                        let decoder = Decoder::new(cx, image, segment, within, data, words);
                        let outcome = decoder.run(cx, tables, before);
                        let same = outcome.end == State(states.get(cx, STATES * piece + 1));
                        keep(cx, states, counts, piece, before, &outcome);
                        cx.shared_add(changes, round % 3, 1);
                        before = outcome.end;
                        index += 1;
                        going = !same && index < end;
                    }
                }
                turn += THREADS;
                cx.barrier();
            }
            if rank == 0 {
                cx.shared_set(changes, (round + 1) % 3, 0);
            }
            cx.barrier();
            if cx.shared_get(changes, round % 3) == 0 {
                break;
            }
            round += 1;
        }
    }
}

kernel! {
    /// Computes, for each piece, the sums of `counts` over the pieces of its image before it.
    /// `places` [P, 4] is written.
    pub(super) unsafe fn offsets(
        cx: impl Cooperative, image_count: u32, piece_count: u32, images: In<u32>, counts: In<u32>, places: InOut<u32>,
    )
    require {
        image_count >= 1, piece_count >= 1, piece_count <= 1 << 28,
        images.len() == image_count * IMAGE_WORDS,
        counts.len() == piece_count * COUNTS,
        places.len() == piece_count * COUNTS,
    }
    grid(image_count) block(THREADS) shared(THREADS / 32 * COUNTS * 4)
    {
        let image = Record::new(images, cx.block_idx().x, IMAGE_WORDS);
        let first = image.get(cx, 10).min(piece_count);
        let own = image.get(cx, 11).min(piece_count - first);
        let totals = cx.shared::<u32>(0);
        let mut carry = [0u32; COUNTS as usize];
        let mut start = 0;
        while start < own {
            let index = start + cx.rank();
            let mut values = [0u32; COUNTS as usize];
            if index < own {
                for (c, value) in (0..).zip(&mut values) {
                    *value = counts.get(cx, COUNTS * (first + index) + c);
                }
            }
            // The sums over the lanes up to this one.
            let sums = values.map(|value| {
                let mut sum = value;
                let mut delta = 1;
                while delta < 32 {
                    let other = cx.shuffle_up(sum, delta);
                    if cx.lane() >= delta {
                        sum = sum.wrapping_add(other);
                    }
                    delta *= 2;
                }
                sum
            });
            if cx.lane() == 31 {
                for (c, sum) in (0..).zip(sums) {
                    cx.shared_set(totals, cx.warp() * COUNTS + c, sum);
                }
            }
            cx.barrier();
            let warp = cx.warp();
            for c in 0..COUNTS {
                let (mut before, mut all) = (carry[c as usize], 0u32);
                for w in 0..THREADS / 32 {
                    let total = cx.shared_get(totals, w * COUNTS + c);
                    before = before.wrapping_add(if w < warp { total } else { 0 });
                    all = all.wrapping_add(total);
                }
                if index < own {
                    let exclusive = sums[c as usize].wrapping_sub(values[c as usize]);
                    places.set(cx, COUNTS * (first + index) + c, before.wrapping_add(exclusive));
                }
                carry[c as usize] = carry[c as usize].wrapping_add(all);
            }
            cx.barrier();
            start += THREADS;
        }
    }
}

/// The place of each coefficient of a block, column by column, in zigzag order (ITU-T T.81, figure
/// A.6).
pub const ZIGZAG: [u8; 64] = [
    0, 8, 1, 2, 9, 16, 24, 17, 10, 3, 4, 11, 18, 25, 32, 40, 33, 26, 19, 12, 5, 6, 13, 20, 27, 34, 41, 48, 56, 49, 42,
    35, 28, 21, 14, 7, 15, 22, 29, 36, 43, 50, 57, 58, 51, 44, 37, 30, 23, 31, 38, 45, 52, 59, 60, 53, 46, 39, 47, 54,
    61, 62, 55, 63,
];

kernel! {
    /// Decodes every piece and writes its coefficients, column by column in each block, and DC
    /// coefficients as their values. Each block of `coefficients` [B, 64] that is complete is
    /// written whole, so nothing has to be there before. `status` [I], which is 0 before, gets bit
    /// 0 for an image with data that does not fit its tables, bit 1 for one whose data ends too
    /// early, and bit 2 for one whose pieces did not fall into step. Only an image that gets no bit
    /// has all of its blocks.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn coefficients(
        cx: impl Cooperative, image_count: u32, segment_count: u32, piece_count: u32, words: u32, most: u32, table_count: u32,
        blocks: u32,
        images: In<u32>, segments: In<u32>, pieces: In<u32>, huffman: In<u32>, data: In<u32>,
        states: In<u32>, counts: In<u32>, places: In<u32>, coefficients: Out<i16>, status: InOut<u32>,
    )
    require {
        image_count >= 1, segment_count >= 1, table_count >= 1, words >= 1, most <= piece_count,
        piece_count <= 1 << 28,
        images.len() == image_count * IMAGE_WORDS,
        segments.len() == segment_count * SEGMENT_WORDS,
        pieces.len() == piece_count,
        huffman.len() == table_count * TABLE_WORDS,
        data.len() == words,
        states.len() == piece_count * STATES,
        counts.len() == piece_count * COUNTS,
        places.len() == piece_count * COUNTS,
        coefficients.len() == blocks * 64,
        coefficients.is_aligned(4),
        status.len() == image_count,
    }
    grid(most.div_ceil(PIECES_OF_BLOCK), image_count) block(PIECES_OF_BLOCK)
    shared(ALL_TABLES * 4 + 64 + PIECES_OF_BLOCK * OWN * 4)
    {
        let number = cx.block_idx().y;
        let image = Record::new(images, number, IMAGE_WORDS);
        let rank = cx.rank();
        let tables = cx.shared::<u32>(0);
        let order = cx.shared::<u8>(ALL_TABLES * 4);
        let window = cx.shared::<u32>(ALL_TABLES * 4 + 64);
        if rank < 64 {
            cx.shared_set(order, rank, ZIGZAG[rank as usize]);
        }
        let own = cx.shared_at::<u16>(window.address() + 4 * OWN * rank);
        let mut word = 0;
        while word < OWN {
            cx.shared_set(window, OWN * rank + word, 0);
            word += 1;
        }
        load_tables(cx, image, huffman, table_count, tables, PIECES_OF_BLOCK);
        let index = cx.block_idx().x * PIECES_OF_BLOCK + rank;
        let first = image.get(cx, 10).min(piece_count);
        let mut active = index < image.get(cx, 11).min(piece_count - first);
        let piece = (first + index).min(piece_count - 1);
        let segment = Record::new(segments, pieces.get(cx, piece).min(segment_count - 1), SEGMENT_WORDS);
        let within = piece.saturating_sub(segment.get(cx, 2));
        let decoder = Decoder::new(cx, image, segment, within, data, words);
        // Past the last piece of an image may lie room that no piece uses and no kernel has
        // written.
        let mut start = State::START;
        let mut sums = [0u32; COUNTS as usize];
        if active {
            start = State(states.get(cx, STATES * piece));
            // A piece that does not start where the one before it ended has wrong places. This is
            // told here, because what the end of the kernel needs takes registers until then.
            if within > 0 && piece > 0 && State(states.get(cx, STATES * (piece - 1) + 1)) != start {
                status.atomic(number).or(cx, APART);
            }
            // The sums before this piece, from the start of its segment.
            let zero = (piece - within).max(first);
            for (c, sum) in (0..).zip(&mut sums) {
                *sum = places.get(cx, COUNTS * piece + c).wrapping_sub(places.get(cx, COUNTS * zero + c));
            }
        }
        let [passed, dc @ ..] = sums;
        let all = segment.get(cx, 4).min(u32::MAX / 64) * 64;
        let most = all.saturating_sub(passed);
        let first_block = image.get(cx, 9).saturating_add(segment.get(cx, 3));
        let mut cursor = Cursor::new(cx, &decoder, start, dc);
        // Whether the block started in this piece, and where it goes.
        let (mut mine, mut block) = (false, 0);
        let mut going = true;
        while going {
            let mut full = false;
            if active {
                let fresh = cursor.next == 0;
                // A thread goes past the end of its piece to complete a block.
                let end = if mine && !fresh { decoder.left } else { decoder.bits };
                active = cursor.passed < most && cursor.bit < end;
                if active {
                    if fresh {
                        (mine, block) = (true, first_block.saturating_add(passed.wrapping_add(cursor.passed) / 64));
                    }
                    match cursor.step(cx, &decoder, tables) {
                        Found::Coefficient(place, value) => {
                            if mine {
                                cx.shared_set(own, u32::from(cx.shared_get(order, place & 63)), value as u16);
                            }
                            full = mine && cursor.next == 0;
                        }
                        Found::Zeros => full = mine && cursor.next == 0,
                        // Past the end of the piece this is the next thread's error. It ends here,
                        // or each piece might take the time of all that follow.
                        Found::Nothing => active = cursor.bit < decoder.bits,
                    }
                }
            }
            // The warp writes the blocks that are complete, one after another: each is a whole line
            // of memory.
            cx.warp_barrier();
            let mut left = cx.ballot(full);
            while left != 0 {
                let lane = left.trailing_zeros();
                left &= left - 1;
                let at = OWN * (rank - cx.lane() + lane) + cx.lane();
                let pair = cx.shared_get(window, at);
                cx.shared_set(window, at, 0);
                let block = cx.shuffle(block, lane);
                if block < blocks {
                    // An ordinary store would be a race: pieces that are not in step may both
                    // complete a block, and what a table of segments says may give two of them one
                    // place.
                    let to = coefficients.as_ptr().add(block as usize * 64).cast::<u32>();
                    Atomic::<u32>::from_ptr(to.add(cx.lane() as usize)).store(cx, pair);
                }
            }
            cx.warp_barrier();
            going = cx.ballot(active) != 0;
        }
        if index < image.get(cx, 11).min(piece_count - first) {
            let mut found = if cursor.broken { BROKEN } else { 0 };
            // The last piece of a segment must reach the end of the segment's last block, with bits
            // that are there.
            let last = segment.get(cx, 1).div_ceil(PIECE_BITS).max(1) - 1;
            let ran_over = cursor.passed == most && cursor.bit > decoder.bits && most > 0;
            if within == last && (cursor.passed < most || ran_over) {
                found |= SHORT;
            }
            if found != 0 {
                status.atomic(number).or(cx, found);
            }
        }
    }
}
