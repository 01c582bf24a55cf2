//! Kernels without `unsafe` on the CPU device: who owns which element, and what is reported. Larger
//! kernels, which also run on a GPU, are in `benches/safe`.
#![forbid(unsafe_code)]

use thalweg::simt::hint;
use thalweg::{Device, PerThread, Stream, kernel, stream_tags};

stream_tags!(Work);

fn on() -> Stream<Work> {
    Device::cpu().unwrap().stream().unwrap()
}

/// Declares a kernel that adds 1 to each element that a thread owns, by `mine` and by `for_each`,
/// and 1 more to `seen` each time.
macro_rules! counting {
    ($h:ident $w:ident: $($name:ident [$($axis:ident $(($k:tt))?),+] ($($grid:tt)+) ($($block:tt)+);)*) => {$(
        kernel! {
            fn $name(
                t: impl Simt, $h: u32, $w: u32, y: InOut<u32>[$h, $w] by [$($axis $(($k))?),+], seen: Atomic<u32>[1],
            )
            grid($($grid)+) block($($block)+)
            {
                for y in y.mine(t) {
                    y.set(y.get() + 1);
                    seen.add(t, [0], 1);
                }
                y.for_each(t, |y| {
                    y.set(y.get() + 1);
                    seen.add(t, [0], 1);
                });
            }
        }
    )*};
}
counting! {
    h w:
    rows_and_columns [y, x] (w.div_ceil(8), h.div_ceil(4)) (8, 4);
    columns_of_four [y(2), x(4)] (w.div_ceil(32), h.div_ceil(8)) (8, 4);
    whole_rows [x, all] (h.div_ceil(8)) (8);
    strided [stride(y), stride] (2, 3) (4, 2);
    across_blocks [xz(2), stride(y)] (h.div_ceil(8)) (1, 8, 4);
    a_block_each [block(y), block] (w, h) (8);
    ranks_of_a_block [block, rank] (h) (4, 2, 2);
    one_thread [all, all] (2, 2, 2) (4, 2);
    one_of_a_deep_block [all, all] (2, 2, 2) (4, 2, 2);
    diagonal [x, x] (2) (4);
    too_few [y, x] (1) (3, 2);
}

/// Runs a kernel of `counting!` on `h` x `w` elements, and returns how often each was counted, and
/// how many elements were counted in all.
macro_rules! counts {
    ($name:ident $h:expr, $w:expr) => {{
        let (h, w): (u32, u32) = ($h, $w);
        let on = on();
        let mut y = on.upload_blocking(&vec![0u32; (h * w) as usize]).unwrap();
        let mut seen = on.upload_blocking(&[0u32]).unwrap();
        $name(&on, h, w, &mut y, &mut seen).unwrap();
        (on.read_blocking(&y).unwrap(), on.read_blocking(&seen).unwrap()[0])
    }};
}

#[test]
fn an_element_has_one_owner() {
    for (h, w) in [(1, 1), (3, 5), (8, 32), (17, 33)] {
        let once = (vec![2; (h * w) as usize], 2 * h * w);
        assert_eq!(counts!(rows_and_columns h, w), once, "{h} x {w}");
        assert_eq!(counts!(columns_of_four h, w), once, "{h} x {w}");
        assert_eq!(counts!(whole_rows h, w), once, "{h} x {w}");
        assert_eq!(counts!(strided h, w), once, "{h} x {w}");
        assert_eq!(counts!(across_blocks h, w), once, "{h} x {w}");
        assert_eq!(counts!(a_block_each h, w), once, "{h} x {w}");
        assert_eq!(counts!(ranks_of_a_block h, w), once, "{h} x {w}");
        // The threads that differ only in coordinates that no owner names own nothing, but one.
        assert_eq!(counts!(one_thread h, w), once, "{h} x {w}");
        assert_eq!(counts!(one_of_a_deep_block h, w), once, "{h} x {w}");
    }
}

#[test]
fn what_no_thread_owns_stays_as_it_is() {
    let (y, seen) = counts!(diagonal 3, 5);
    assert_eq!((y, seen), ((0..15).map(|i| 2 * u32::from(i / 5 == i % 5)).collect(), 6));
    let (y, seen) = counts!(too_few 3, 5);
    assert_eq!((y, seen), ((0..15).map(|i| 2 * u32::from(i / 5 < 2 && i % 5 < 3)).collect(), 12));
}

kernel! {
    fn owned(t: impl Simt, n: u32, at: u32, y: Out<u32>[n] by [x]) grid(1) block(4)
    {
        if t.rank() == 1 {
            y.set(t, [at], 7);
        }
    }
}
kernel! {
    fn chunk(t: impl Simt, h: u32, w: u32, y: Out<u32>[h, w] by [y, x(2)]) grid(2) block(2, 2)
    {
        let [row, column] = [t.global_y(), 2 * t.global_x() + 1];
        if row < h && column < w {
            y.set(t, [row, column], 7);
        }
    }
}
kernel! {
    fn of_a_stride(t: impl Simt, n: u32, at: u32, y: Out<u32>[n] by [stride]) grid(2) block(4)
    {
        if t.global_x() == 5 {
            y.set(t, [at], 7);
        }
    }
}
kernel! {
    fn of_a_rank(t: impl Simt, h: u32, w: u32, row: u32, at: u32, y: Out<u32>[h, w] by [block, rank]) grid(h) block(4)
    {
        if t.block_idx().x == 1 && t.rank() == 3 {
            y.set(t, [row, at], 7);
        }
    }
}
kernel! {
    fn shifted(t: impl Simt, n: u32, by: i32, x: In<u32>[n], y: Out<u32>[n] by [x]) grid(1) block(8)
    {
        if let Some(y) = y.cell(t) {
            y.set(x.clamped(t, y.at(), [by]));
        }
    }
}
kernel! {
    fn row_of(t: impl Simt, h: u32, w: u32, row: u32, column: u32, x: In<u32>[h, w], y: Out<u32>[1] by [x])
    grid(1) block(1)
    {
        y.set(t, [0], x.get(t, [row, column]));
    }
}
kernel! {
    fn window(b: impl Cooperative, len: u32, at: u32, y: Out<u32>[1] by [block]) grid(1) block(32) shared(16 * 4)
    {
        let s = b.shared::<u32>(len);
        let s = b.fill(s, (), |_, (), i| 100 + i);
        let s = b.sync(s.read());
        b.each(&s, move |t, s| {
            if let Some(y) = y.cell(t) {
                y.set(s.get(t, at));
            }
        });
    }
}
kernel! {
    fn add_at(t: impl Simt, at: u32, n: Atomic<u32>[2]) grid(1) block(8) { n.add(t, [at], 2); }
}

/// Runs launches on a CPU device of their own, whose use a fault ends, and returns what the device
/// reports.
macro_rules! reported {
    (|$on:ident| $launch:expr) => {
        Device::new_cpu()
            .unwrap()
            .scope(|rank| {
                let $on = rank.stream::<Work>()?;
                $launch?;
                $on.synchronize()
            })
            .map_or_else(|error| error.to_string(), |()| "nothing".into())
    };
}

#[track_caller]
fn says(report: &str, text: &str) {
    assert!(report.contains(text), "{report}");
}

#[test]
fn a_write_to_what_others_own_is_reported() {
    assert_eq!(reported!(|on| owned(&on, 4, 1, &mut on.upload_blocking(&[0u32; 4])?)), "nothing");
    let report = reported!(|on| owned(&on, 4, 2, &mut on.upload_blocking(&[0u32; 4])?));
    says(&report, "thread [1, 0, 0] panicked: wrote element [2], which another thread owns");
    let report = reported!(|on| owned(&on, 4, 4, &mut on.upload_blocking(&[0u32; 4])?));
    says(&report, "wrote element [4] of a buffer with extents [4]");
    assert_eq!(reported!(|on| chunk(&on, 2, 8, &mut on.upload_blocking(&[0u32; 16])?)), "nothing");
    // Every place, over several turns of the owner.
    let says_if = |report: &str, owns: bool| match owns {
        true => assert_eq!(report, "nothing"),
        false => says(report, "which another thread owns"),
    };
    for at in 0..32 {
        let report = reported!(|on| of_a_stride(&on, 32, at, &mut on.upload_blocking(&[0u32; 32])?));
        says_if(&report, at % 8 == 5);
    }
    for (row, at) in (0..3).flat_map(|row| (0..12).map(move |at| (row, at))) {
        let report = reported!(|on| of_a_rank(&on, 3, 12, row, at, &mut on.upload_blocking(&[0u32; 36])?));
        says_if(&report, row == 1 && at % 4 == 3);
    }
}

kernel! {
    fn tickets(t: impl Simt, n: u32, next: Atomic<u32>[1], taken: Out<u32>[n] by [x]) grid(n.div_ceil(32)) block(32)
    {
        let ticket = next.add(t, [0], 1);
        if let Some(cell) = taken.cell(t) {
            cell.set(ticket);
        }
    }
}

/// A kernel that is right in one order only is found by some seed, and always by that one.
#[test]
fn a_seed_of_a_checked_device_chooses_the_order_of_blocks_and_threads() {
    let device = Device::checked_cpu().unwrap();
    let order = |seed| -> Vec<u32> {
        device.reseed(seed);
        let run = device.scope(|rank| {
            let on = rank.stream::<Work>()?;
            let (mut next, mut taken) = (on.upload_blocking(&[0u32])?, on.alloc(128)?);
            tickets(&on, 128, &mut next, &mut taken)?;
            on.read_blocking(&taken)
        });
        run.unwrap()
    };
    let orders: Vec<_> = (0..8).map(order).collect();
    assert_eq!(order(3), orders[3]);
    assert!(orders.iter().any(|order| *order != orders[0]));
    assert!(orders.iter().any(|order| order[..32].iter().all(|ticket| *ticket >= 32)), "block 0 is not the first");
    assert!(orders.iter().any(|order| !order[..32].is_sorted()), "the threads of a block are not in order");
}

#[test]
fn an_element_beside_another_one_is_inside() {
    let (on, x) = (on(), [10u32, 11, 12, 13, 14]);
    for by in [0, 1, -1, 3, -4, i32::MAX, i32::MIN] {
        let mut y = on.alloc(5).unwrap();
        shifted(&on, 5, by, &on.upload_blocking(&x).unwrap(), &mut y).unwrap();
        let expected: Vec<u32> = (0..5).map(|i| x[(i64::from(by) + i).clamp(0, 4) as usize]).collect();
        assert_eq!(on.read_blocking(&y).unwrap(), expected, "{by}");
    }
}

#[test]
fn each_coordinate_is_checked_by_itself() {
    let x = [0u32; 6];
    assert_eq!(reported!(|on| row_of(&on, 2, 3, 1, 2, &on.upload_blocking(&x)?, &mut on.alloc(1)?)), "nothing");
    // Element [0, 3] would be the first of the next row.
    let report = reported!(|on| row_of(&on, 2, 3, 0, 3, &on.upload_blocking(&x)?, &mut on.alloc(1)?));
    says(&report, "read element [0, 3] of a buffer with extents [2, 3]");
    let report = reported!(|on| row_of(&on, 2, 3, u32::MAX, 0, &on.upload_blocking(&x)?, &mut on.alloc(1)?));
    says(&report, "read element [4294967295, 0]");
}

#[test]
fn shared_memory_and_atomics_are_checked() {
    let on = on();
    let mut y = on.alloc::<u32>(1).unwrap();
    for at in [0, 15] {
        window(&on, 16, at, &mut y).unwrap();
        assert_eq!(on.read_blocking(&y).unwrap(), [100 + at]);
    }
    says(&reported!(|on| window(&on, 16, 16, &mut on.alloc(1)?)), "used element 16 of shared memory with 16 elements");
    says(&reported!(|on| window(&on, 17, 0, &mut on.alloc(1)?)), "of which 64 bytes are left");
    says(&reported!(|on| window(&on, u32::MAX, 0, &mut on.alloc(1)?)), "of which 64 bytes are left");
    assert_eq!(reported!(|on| add_at(&on, 1, &mut on.upload_blocking(&[0u32; 2])?)), "nothing");
    says(&reported!(|on| add_at(&on, 2, &mut on.upload_blocking(&[0u32; 2])?)), "updated element [2]");
}

kernel! {
    fn wide(t: impl Simt, blocks: u32, y: Out<u32>[1] by [x]) grid(blocks) block(1024)
    {
        if let Some(y) = y.cell(t) {
            y.set(1);
        }
    }
}
kernel! {
    fn cells(t: impl Simt, h: u64, w: u32, y: Out<u32>[cells = h * w + 1] by [x]) grid(cells.div_ceil(32)) block(32)
    {
        if let Some(y) = y.cell(t) {
            y.set(cells);
        }
    }
}

kernel! {
    fn parts(t: impl Simt, n: u32, k: u32, y: Out<u32>[parts = n / k] by [x]) require { k > 0 } grid(1) block(32)
    {
        if let Some(y) = y.cell(t) {
            y.set(parts);
        }
    }
}

#[test]
fn a_predicate_rules_out_what_extents_cannot_be_computed_from() {
    let on = on();
    let mut y = on.alloc::<u32>(3).unwrap();
    parts(&on, 7, 2, &mut y).unwrap();
    assert_eq!(on.read_blocking(&y).unwrap(), [3; 3]);
    says(&parts(&on, 7, 0, &mut y).unwrap_err().to_string(), "requires `k > 0`");
}

#[test]
fn the_launcher_checks_what_the_body_relies_on() {
    let on = on();
    let mut y = on.alloc::<u32>(7).unwrap();
    cells(&on, 2, 3, &mut y).unwrap();
    assert_eq!(on.read_blocking(&y).unwrap(), [7; 7]);
    let error = cells(&on, 2, 4, &mut y).unwrap_err().to_string();
    says(&error, "declares `y` with extents [9], but was given 7 elements");
    // The extent is 2^64 + 3, which a 64-bit number would hold as 3.
    let error = cells(&on, u64::MAX / 3 + 1, 3, &mut on.alloc(3).unwrap()).unwrap_err().to_string();
    says(&error, "with extents [18446744073709551619], but was given 3 elements");
    let mut one = on.alloc::<u32>(1).unwrap();
    let error = wide(&on, 1 << 22, &mut one).unwrap_err().to_string();
    says(&error, "with 4194304 blocks of 1024 threads along one axis");
}

kernel! {
    /// The element number of each element, in the order in which the thread visits them.
    fn in_order(t: impl Simt, h: u32, w: u32, y: Out<u32>[2, h, w] by [all, y(3), x(4)]) grid(1) block(1, 1)
    {
        let mut number = 0;
        y.for_each(t, |y| {
            y.set(number);
            number += 1;
        });
    }
}
kernel! {
    /// Writes to each element the place of its column and its own place in it.
    fn columns(t: impl Simt, h: u32, w: u32, y: Out<u32>[h, 3, w] by [y(2), all, x(4)]) grid(w, h) block(2, 1)
    {
        y.for_each_column(t, |column| {
            let [row, first, x] = column.at();
            for k in 0..3 {
                column.cell::<1>(k).set(1000 * (row + 1) + 100 * first + 10 * k + x);
            }
        });
    }
}
kernel! {
    fn column_past(t: impl Simt, n: u32, k: u32, y: Out<u32>[n, 2] by [x, all]) grid(1) block(4)
    {
        if let Some(column) = y.column(t) {
            column.cell::<1>(k).set(7);
        }
    }
}

kernel! {
    /// Writes columns of three elements at once, from `k` on.
    fn whole_columns(t: impl Simt, n: u32, k: u32, y: Out<u32>[n, 4] by [x, all]) grid(1) block(4)
    {
        if let Some(column) = y.column(t) {
            for (i, cell) in (0..).zip(column.cells::<1, 3>(k)) {
                cell.set(10 * column.at()[0] + i);
            }
        }
    }
}
kernel! {
    fn near(t: impl Simt, n: u32, all: u32, x: In<u32>[all], y: Out<u32>[n] by [x]) grid(1) block(8)
    {
        if let Some(cell) = y.cell(t) {
            cell.set(x.nearest(t, cell.at()[0]));
        }
    }
}

#[test]
fn columns_are_checked_once_and_the_nearest_element_is_inside() {
    let y = || vec![9u32; 8];
    let on = on();
    for (k, expected) in [(0, [0, 1, 2, 9, 10, 11, 12, 9]), (1, [9, 0, 1, 2, 9, 10, 11, 12])] {
        let mut columns = on.upload_blocking(&y()).unwrap();
        whole_columns(&on, 2, k, &mut columns).unwrap();
        assert_eq!(on.read_blocking(&columns).unwrap(), expected);
    }
    for k in [2, u32::MAX] {
        let report = reported!(|on| whole_columns(&on, 2, k, &mut on.upload_blocking(&y())?));
        says(&report, "took");
    }
    let nearest = |x: &[u32]| {
        let mut y = on.alloc::<u32>(5).unwrap();
        near(&on, 5, x.len() as u32, &on.upload_blocking(x).unwrap(), &mut y).unwrap();
        on.read_blocking(&y).unwrap()
    };
    assert_eq!(nearest(&[5, 6, 8]), [5, 6, 8, 8, 8]);
    assert_eq!(nearest(&[7]), [7; 5]);
    says(&reported!(|on| near(&on, 1, 0, &on.upload_blocking(&[0u32; 0])?, &mut on.alloc(1)?)), "read");
}

#[test]
fn for_each_keeps_the_order_and_columns_are_visited_once() {
    let on = on();
    let mut y = on.alloc::<u32>(2 * 3 * 4).unwrap();
    in_order(&on, 3, 4, &mut y).unwrap();
    assert_eq!(on.read_blocking(&y).unwrap(), (0..24).collect::<Vec<u32>>());
    for (h, w) in [(1, 1), (5, 7), (4, 8)] {
        let mut y = on.upload_blocking(&vec![0u32; (h * 3 * w) as usize]).unwrap();
        columns(&on, h, w, &mut y).unwrap();
        let want = (0..h * 3 * w).map(|i| 1000 * (i / (3 * w) + 1) + 10 * (i / w % 3) + i % w);
        assert_eq!(on.read_blocking(&y).unwrap(), want.collect::<Vec<u32>>(), "{h} x {w}");
    }
    columns(&on, 0, 3, &mut on.alloc(0).unwrap()).unwrap();
    assert_eq!(reported!(|on| column_past(&on, 4, 1, &mut on.upload_blocking(&[0u32; 8])?)), "nothing");
    let report = reported!(|on| column_past(&on, 4, 2, &mut on.upload_blocking(&[0u32; 8])?));
    says(&report, "took element [0, 2] of a buffer with extents [4, 2]");
}

kernel! {
    /// Copies rows of numbers of several sizes, by whole accesses and by parts.
    fn rows(
        t: impl Simt, n: u32, a: In<[u8; 3]>[n], b: In<[[u8; 4]; 3]>[n], c: In<[f32; 4]>[n], d: In<[u64; 3]>[n],
        e: InOut<[u16; 2]>[n] by [x],
        a2: Out<[u8; 3]>[n] by [x], b2: Out<[[u8; 4]; 3]>[n] by [x], c2: Out<[f32; 4]>[n] by [x],
        d2: Out<[u64; 3]>[n] by [x],
    )
    grid(n.div_ceil(4)) block(4)
    {
        let (Some(a2), Some(b2), Some(c2)) = (a2.cell(t), b2.cell(t), c2.cell(t)) else { return };
        let at = a2.at();
        a2.set(a.get(t, at).map(|v| v + 1));
        b2.store(b.load(t, at, hint::Streaming).map(|word| word.map(|v| v + 1)), hint::WriteThrough);
        c2.store(c.load(t, at, hint::ReadOnly).map(|v| v + 1.0), hint::Streaming);
        d2.set(t, at, d.get(t, at).map(|v| v + 1));
        if let Some(e) = e.cell(t) {
            let [first, second] = e.get();
            e.set([second, first]);
        }
    }
}
kernel! {
    fn four(t: impl Simt, n: u32, x: In<[f32; 4]>[n], y: Out<[u16; 4]>[n] by [x]) grid(n.div_ceil(4)) block(4)
    {
        if let Some(y) = y.cell(t) {
            y.set(x.get(t, y.at()).map(|v| v as u16));
        }
    }
}

kernel! {
    /// Copies eight numbers of 16 bits at once, without a hint and with one.
    fn eight(t: impl Simt, n: u32, x: In<[i16; 8]>[n], y: Out<[i16; 8]>[n] by [x], z: Out<[i16; 8]>[n] by [x])
    grid(n.div_ceil(4)) block(4)
    {
        if let (Some(y), Some(z)) = (y.cell(t), z.cell(t)) {
            y.set(x.get(t, y.at()).map(|v| v - 1));
            z.store(x.load(t, z.at(), hint::Streaming).map(|v| v + 1), hint::Streaming);
        }
    }
}

/// Calls `check` with a stream of the ordinary and of the checked CPU device.
fn on_both(check: impl Fn(&Stream<PerThread<'_>>) -> thalweg::Result<()>) {
    for device in [Device::new_cpu().unwrap(), Device::checked_cpu().unwrap()] {
        device.per_thread(|on| check(on)).unwrap().unwrap();
    }
}

#[test]
fn rows_of_numbers_are_elements() {
    on_both(|on| {
        for n in [0, 1, 6] {
            let bytes = |per: usize| (0..n * per).map(|i| i as u8).collect::<Vec<_>>();
            let (floats, words) = ((0..4 * n).map(|i| i as f32), (0..3 * n).map(|i| i as u64));
            let (floats, words): (Vec<f32>, Vec<u64>) = (floats.collect(), words.collect());
            let (a, b) = (on.upload_blocking(&bytes(3))?, on.upload_blocking(&bytes(12))?);
            let (c, d) = (on.upload_blocking(&floats)?, on.upload_blocking(&words)?);
            let mut e = on.upload_blocking(&(0..2 * n as u16).collect::<Vec<_>>())?;
            let (mut a2, mut b2) = (on.alloc::<u8>(3 * n)?, on.alloc::<u8>(12 * n)?);
            let (mut c2, mut d2) = (on.alloc::<f32>(4 * n)?, on.alloc::<u64>(3 * n)?);
            rows(on, n as u32, &a, &b, &c, &d, &mut e, &mut a2, &mut b2, &mut c2, &mut d2)?;
            assert_eq!(on.read_blocking(&a2)?, bytes(3).iter().map(|v| v + 1).collect::<Vec<_>>());
            assert_eq!(on.read_blocking(&b2)?, bytes(12).iter().map(|v| v + 1).collect::<Vec<_>>());
            assert_eq!(on.read_blocking(&c2)?, floats.iter().map(|v| v + 1.0).collect::<Vec<_>>());
            assert_eq!(on.read_blocking(&d2)?, words.iter().map(|v| v + 1).collect::<Vec<_>>());
            assert_eq!(on.read_blocking(&e)?, (0..2 * n as u16).map(|i| i ^ 1).collect::<Vec<_>>());

            let all: Vec<_> = (0..8 * n as i16).map(|i| 257 * (i - 20)).collect();
            let (mut y, mut z) = (on.alloc(8 * n)?, on.alloc(8 * n)?);
            eight(on, n as u32, &*on.upload_blocking(&all)?, &mut y, &mut z)?;
            assert_eq!(on.read_blocking(&y)?, all.iter().map(|v| v - 1).collect::<Vec<_>>());
            assert_eq!(on.read_blocking(&z)?, all.iter().map(|v| v + 1).collect::<Vec<_>>());
        }
        Ok(())
    });
}

#[test]
fn rows_of_numbers_are_aligned() {
    on_both(|on| {
        let (x, mut y) = (on.upload_blocking(&[1.0f32; 13])?, on.alloc::<u16>(13)?);
        four(on, 3, x.slice(..12)?, y.slice_mut(..12)?)?;
        four(on, 2, x.slice(4..12)?, y.slice_mut(4..12)?)?;
        let error = four(on, 3, x.slice(1..)?, y.slice_mut(..12)?).unwrap_err().to_string();
        says(
            &error,
            "accesses 16 bytes of `x` at once, but was given a buffer that does not start on a multiple of 16 bytes",
        );
        let [x8, mut y8, mut z8] = [24; 3].map(|len| on.alloc_zeroed::<i16>(len).unwrap());
        eight(on, 2, x8.slice(8..)?, y8.slice_mut(8..)?, z8.slice_mut(8..)?)?;
        let error = eight(on, 2, x8.slice(4..20)?, y8.slice_mut(..16)?, z8.slice_mut(..16)?).unwrap_err().to_string();
        says(&error, "accesses 16 bytes of `x` at once");
        let error = four(on, 2, x.slice(..8)?, y.slice_mut(2..10)?).unwrap_err().to_string();
        says(&error, "accesses 8 bytes of `y` at once");
        let error = four(on, 3, &x, y.slice_mut(..12)?).unwrap_err().to_string();
        says(&error, "declares `x` with extents [3] of 4 numbers each, but was given 13 elements");
        // 2^30 rows of four numbers are 2^32 numbers.
        let error = four(on, 1 << 30, &x, &mut y).unwrap_err().to_string();
        says(&error, "with extents [1073741824] of 4 numbers each");
        Ok(())
    });
}

kernel! {
    /// The places of an area that each thread of a block of 4 visits, and the elements there.
    fn places(
        t: impl Simt, h: u32, w: u32, y: u32, x: u32, height: u32, width: u32, first: u32, step: u32, most: u32,
        of: In<u32>[2, h, w], seen: Out<u32>[4, most, 2] by [x, all, all],
    )
    grid(1) block(4)
    {
        let area = of.area([y, x], [height, width]);
        if let Some(column) = seen.column(t) {
            // After its places, a thread leaves what was there.
            for (turn, spot) in area.every(t, first + t.rank(), step).enumerate() {
                let [y, x] = spot.at();
                assert!(spot.get([1]) == of.get(t, [1, y, x]) && spot.get([0]) == of.get(t, [0, y, x]));
                seen.set(t, [column.at()[0], turn as u32, 0], spot.get([0]));
                seen.set(t, [column.at()[0], turn as u32, 1], spot.get([1]));
            }
        }
    }
}
kernel! {
    fn area_plane(t: impl Simt, plane: u32, x: In<u32>[2, 3, 3], y: Out<u32>[1] by [x]) grid(1) block(1)
    {
        let sum = x.area([1, 1], [2, 2]).every(t, 0, 1).map(|spot| spot.get([plane])).sum();
        y.set(t, [0], sum);
    }
}
kernel! {
    fn area_of(t: impl Simt, y: u32, x: u32, height: u32, width: u32, of: In<u32>[3, 5], sum: Out<u32>[1] by [x])
    grid(1) block(1)
    {
        sum.set(t, [0], of.area([y, x], [height, width]).every(t, 0, 1).map(|spot| spot.get([])).sum());
    }
}

#[test]
fn the_places_of_an_area_are_visited_in_order() {
    on_both(|on| {
        let (h, w, most) = (7, 11, 80);
        let of = on.upload_blocking(&(0..2 * h * w).collect::<Vec<u32>>())?;
        for [y, x, height, width] in
            [[0, 0, 7, 11], [2, 3, 4, 5], [6, 10, 1, 1], [0, 4, 7, 1], [3, 0, 1, 11], [7, 11, 0, 0]]
        {
            for (first, step) in [(0, 4), (0, 1), (3, 7), (0, 100), (50, 3), (0, u32::MAX), (u32::MAX - 3, 2)] {
                let mut seen = on.upload_blocking(&vec![9999u32; (4 * most * 2) as usize])?;
                places(on, h, w, y, x, height, width, first, step, most, &of, &mut seen)?;
                let mut want = vec![9999; (4 * most * 2) as usize];
                for thread in 0..4 {
                    let numbers = (u64::from(first) + thread..u64::from(height * width)).step_by(step as usize);
                    for (turn, n) in numbers.enumerate() {
                        let element = (y + n as u32 / width) * w + x + n as u32 % width;
                        let at = (thread as u32 * most + turn as u32) as usize * 2;
                        want[at..at + 2].copy_from_slice(&[element, h * w + element]);
                    }
                }
                assert_eq!(on.read_blocking(&seen)?, want, "{height} x {width} at {y}, {x}, {first}, {step}");
            }
        }
        Ok(())
    });
}

#[test]
fn an_area_is_inside_its_buffer() {
    let x = (0..18).collect::<Vec<u32>>();
    for device in [Device::new_cpu, Device::checked_cpu] {
        let reported = |launch: &dyn Fn(&Stream<PerThread<'_>>) -> thalweg::Result<()>| {
            let device = device().unwrap();
            let result = device.per_thread(|on| launch(on).and_then(|()| on.synchronize())).unwrap();
            result.map_or_else(|error| error.to_string(), |()| "nothing".into())
        };
        let plane = |plane| reported(&|on| area_plane(on, plane, &on.upload_blocking(&x)?, &mut on.alloc(1)?));
        assert_eq!(plane(1), "nothing");
        says(&plane(2), "read element [2] of a buffer with extents [2]");
        let area = |[y, x, height, width]: [u32; 4]| {
            reported(&|on| area_of(on, y, x, height, width, &on.upload_blocking(&[1; 15])?, &mut on.alloc(1)?))
        };
        for inside in [[0, 0, 3, 5], [3, 5, 0, 0], [1, 2, 2, 3], [0, 0, 0, 5], [0, 0, 3, 0]] {
            assert_eq!(area(inside), "nothing", "{inside:?}");
        }
        for outside in [
            [0, 0, 4, 5],
            [0, 0, 3, 6],
            [1, 0, 3, 1],
            [0, 1, 1, 5],
            [4, 0, 0, 1],
            [u32::MAX, 0, 2, 1],
            [1, 1, u32::MAX, 1],
        ] {
            let [y, x, height, width] = outside;
            let text = format!(
                "made an area of [{height}, {width}] at [{y}, {x}] in the last two dimensions of a buffer with extents [3, 5]"
            );
            says(&area(outside), &text);
        }
    }
}

kernel! {
    fn warps(b: impl Cooperative, more: u32, y: Out<u32>[9, 64] by [all, rank]) grid(1) block(64)
    {
        let rank = b.each((), |t, ()| t.rank());
        let float = b.each((), |t, ()| t.rank() as f32);
        let odd = b.each((), |t, ()| t.rank() % 2 == 1);
        let (xor, up) = (b.shuffle_xor(&rank, 5 + more), b.shuffle_up(&rank, 3 + more));
        let down = b.shuffle_down(&rank, 3 + more);
        let (odd, sum) = (b.ballot(&odd), b.warp_sum_u32(&rank));
        let (total, most, least) = (b.warp_sum(&float), b.warp_max(&float), b.warp_min(&float));
        let floats = b.each((&total, &most, &least), |t, (a, b, c)| [a.get(t), b.get(t), c.get(t)].map(|v| v as u32));
        b.each((&xor, &up, &down, &odd, &sum, &floats), move |t, (xor, up, down, odd, sum, floats)| {
            let [total, most, least] = floats.get(t);
            let all = [xor.get(t), up.get(t), down.get(t), odd.get(t), sum.get(t), total, most, least, 1];
            for y in y.mine(t) {
                y.set(all[y.at()[0] as usize]);
            }
        });
    }
}

#[test]
fn warps_exchange_values() {
    let on = on();
    let mut y = on.alloc::<u32>(9 * 64).unwrap();
    // Only the low five bits of a distance count.
    for more in [0, 32, 96, u32::MAX - 31] {
        warps(&on, more, &mut y).unwrap();
        let y = on.read_blocking(&y).unwrap();
        for i in 0..64u32 {
            let (warp, lane) = (i / 32 * 32, i % 32);
            let sum = 32 * warp + 31 * 16;
            let up = if lane < 3 { i } else { i - 3 };
            let down = if lane > 28 { i } else { i + 3 };
            let want = [warp + (lane ^ 5), up, down, 0xaaaa_aaaa, sum, sum, warp + 31, warp, 1];
            let found: Vec<_> = y.iter().skip(i as usize).step_by(64).copied().collect();
            assert_eq!(found, want, "thread {i}, by {more} more");
        }
    }
}

kernel! {
    fn read_by_the_block(b: impl Cooperative, len: u32, at: u32, y: Out<u32>[3, 64] by [all, rank])
    grid(1) block(64) shared(64 * 4)
    {
        let s = b.shared::<[u16; 4]>(len);
        let s = b.fill(s, (), |_, (), i| [0, 1, 2, 3].map(|e| (4 * i + e) as u16));
        let s = b.sync(s.read());
        // All threads see the same, so this branch may hold a barrier.
        let [first, ..] = s.uniform(&b, at);
        if first > 0 {
            b.sync(());
        }
        b.each(&s, move |t, s| {
            let [a, b] = s.nearest_words(t, t.rank(), [1, 0]);
            y.for_each(t, |y| y.set([first.into(), a, b][y.at()[0] as usize]));
        });
    }
}

#[test]
fn the_block_reads_an_element_and_threads_read_words() {
    let on = on();
    let mut y = on.alloc::<u32>(3 * 64).unwrap();
    read_by_the_block(&on, 4, 3, &mut y).unwrap();
    let y = on.read_blocking(&y).unwrap();
    // Four elements are eight words. The last place from which two are inside is 6.
    let word = |i: u32| (2 * i) | ((2 * i + 1) << 16);
    for i in 0..64 {
        let at = i.min(6);
        assert_eq!(
            [y[i as usize], y[64 + i as usize], y[128 + i as usize]],
            [12, word(at + 1), word(at)],
            "thread {i}"
        );
    }
    let says = |len: u32, at: u32, what: &str| {
        let report = reported!(|on| read_by_the_block(&on, len, at, &mut on.alloc(3 * 64)?));
        assert!(report.contains(what), "{report}");
    };
    says(4, 4, "used element 4 of shared memory with 4 elements");
    says(0, 0, "used element 0 of shared memory with 0 elements");
}

kernel! {
    fn increment(t: impl Simt, n: u32, x: In<u32>[n], y: InOut<u32>[n] by [x])
    grid(n.div_ceil(32)) block(32)
    {
        if let Some(y) = y.cell(t) {
            y.set(y.get() + x.try_get(t, y.at()).unwrap_or(1));
        }
    }
}

#[test]
fn the_checked_device_names_the_line_of_a_kernel_without_unsafe() {
    let run = |x: bool, y: bool| {
        let device = Device::checked_cpu().unwrap();
        let result = device.per_thread(|s| -> thalweg::Result<()> {
            let written = |yes: bool| if yes { s.upload_blocking(&[1u32; 40]) } else { s.alloc(40) };
            let (x, mut y) = (written(x)?, written(y)?);
            increment(s, 40, &x, &mut y)?;
            s.synchronize()
        });
        result.unwrap().map_err(|error| error.to_string())
    };
    run(true, true).unwrap();
    for (x, y, buffer) in [(false, true, "`x`"), (true, false, "`y`")] {
        let error = run(x, y).unwrap_err();
        assert!(error.contains(buffer) && error.contains("tests/safe_kernels.rs:"), "{error}");
    }
}

kernel! {
    fn by_fours(t: impl Simt, x: In<[u32; 4]>[10], y: Out<[u32; 4]>[10] by [x]) grid(1) block(32)
    {
        if let Some(y) = y.cell(t) {
            y.store(x.load(t, y.at(), hint::Streaming), hint::Streaming);
        }
    }
}
kernel! {
    fn by_area(t: impl Simt, x: In<u32>[5, 8], y: Out<u32>[1] by [x]) grid(1) block(1)
    {
        y.set(t, [0], x.area([1, 2], [4, 6]).every(t, 0, 1).map(|spot| spot.get([])).sum());
    }
}

#[test]
fn the_checked_device_knows_each_number_of_a_row_and_of_an_area() {
    // Element 15 alone was never written: the last one of row 3 of four, and of the area's first
    // row.
    let run = |area: bool, hole: bool| {
        let device = Device::checked_cpu().unwrap();
        let result = device.per_thread(|s| -> thalweg::Result<()> {
            let mut x = s.alloc::<u32>(40)?;
            for part in [0..15, 15 + usize::from(hole)..40] {
                s.fill(x.slice_mut(part)?, 1)?;
            }
            if area {
                by_area(s, &x, &mut s.alloc(1)?)?
            } else {
                by_fours(s, &x, &mut s.alloc(40)?)?
            }
            s.synchronize()
        });
        result.unwrap().map_err(|error| error.to_string())
    };
    for area in [false, true] {
        run(area, false).unwrap();
        let error = run(area, true).unwrap_err();
        assert!(error.contains("`x`") && error.contains("tests/safe_kernels.rs:"), "{error}");
    }
}

kernel! {
    fn last_of_none(t: impl Simt, h: u32, x: In<u32>[h, h, 0], y: Out<u32>[1] by [x]) grid(1) block(1)
    {
        y.set(t, [0], x.try_get(t, [h - 1, h - 1, 0]).unwrap_or(7));
    }
}

#[test]
fn a_buffer_without_elements_has_none_however_large_its_other_extents_are() {
    on_both(|on| {
        let mut y = on.alloc(1)?;
        last_of_none(on, u32::MAX, &on.alloc(0)?, &mut y)?;
        assert_eq!(on.read_blocking(&y)?, [7]);
        Ok(())
    });
}

/// Methods that have the names of those that a launcher calls, which never calls these.
#[expect(dead_code)]
trait Alike: Sized {
    fn put<T>(self, _: T) -> u128 {
        1
    }
    fn launch<A, B, C>(self, _: A, _: B, _: C) -> thalweg::Result<()> {
        Ok(())
    }
}
impl<T> Alike for T {}

/// A function with the name of a parameter.
#[expect(dead_code)]
fn n() -> u128 {
    1
}

macro_rules! of_a_macro {
    ($n:ident) => {
        kernel! {
            fn alike(t: impl Simt, $n: u32, x: In<u32>[n], y: Out<u32>[n] by [x]) require { $n > 1 } grid($n) block(1)
            {
                if let Some(y) = y.cell(t) {
                    y.set(x.get(t, [$n - 1 - y.at()[0]]));
                }
            }
        }
    };
}
of_a_macro!(n);

#[test]
fn names_alike_do_not_replace_what_a_declaration_means() {
    on_both(|on| {
        let (x, mut y) = (on.upload_blocking(&[1, 2, 3])?, on.alloc(3)?);
        alike(on, 3, &x, &mut y)?;
        assert_eq!(on.read_blocking(&y)?, [3, 2, 1]);
        let error = alike(on, 2, &x, &mut y).unwrap_err().to_string();
        says(&error, "declares `x` with extents [2], but was given 3 elements");
        says(&alike(on, 1, &x, &mut y).unwrap_err().to_string(), "requires");
        Ok(())
    });
}

#[test]
fn an_origin_has_the_text_of_a_declaration() {
    use thalweg::simt::safe::__declared;
    let text = |declaration, block| {
        let (bytes, len) = __declared::<64>(("kernels 0.1.0 kernels::blas", declaration, block));
        assert_eq!(__declared::<0>(("kernels 0.1.0 kernels::blas", declaration, block)).1, len);
        assert!(bytes[len..].iter().all(|byte| *byte == 0));
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let all = "kernels 0.1.0 kernels::blas Simt(n:u32;x:In<f32>[n,];)gb,256";
    assert_eq!(text("Simt(n:u32;x:In<f32>[n,];)gb", &[256]), all);
    assert_eq!(text("Simt( n : u32 ; x:In< f32 >[ n,]; )gb", &[256]), all);
    assert_eq!(text("", &[0, 10, 1 << 20, u32::MAX]), "kernels 0.1.0 kernels::blas ,0,10,1048576,4294967295");
}

kernel! {
    /// Multiplies the matrices of each warp. `a` has rows of 32 bytes, `b` columns of 32.
    fn multiply(
        b: impl Cooperative, warps: u32, signed: u32,
        left: In<u8>[warps, 16, 32], right: In<u8>[warps, 8, 32], plus: In<i32>[warps, 16, 8],
        out: Out<i32>[warps, 8, 4, 4] by [xz(2), y, x, all],
    )
    require { (1..=4).contains(&warps) }
    grid(1) block(4, 8, 2)
    {
        for turn in 0..2 {
            let warp = move |z: u32| (2 * z + turn).min(warps - 1);
            let a = b.each((), move |t, ()| {
                let (at, warp) = (t.thread_idx(), warp(t.thread_idx().z));
                [0, 1, 2, 3].map(|w| {
                    u32::from_le_bytes([0, 1, 2, 3].map(|e| left.get(t, [warp, at.y + 8 * (w % 2), 4 * at.x + e + 16 * (w / 2)])))
                })
            });
            let columns = b.each((), move |t, ()| {
                let (at, warp) = (t.thread_idx(), warp(t.thread_idx().z));
                [[0, 1].map(|w| u32::from_le_bytes([0, 1, 2, 3].map(|e| right.get(t, [warp, at.y, 4 * at.x + e + 16 * w]))))]
            });
            let sums = b.each((), move |t, ()| {
                let (at, warp) = (t.thread_idx(), warp(t.thread_idx().z));
                [[0, 1, 2, 3].map(|e| plus.get(t, [warp, at.y + 8 * (e / 2), 2 * at.x + e % 2]))]
            });
            let products = match signed {
                0 => b.multiply_bytes::<false, 1>(&a, &columns, &sums),
                _ => b.multiply_bytes::<true, 1>(&a, &columns, &sums),
            };
            b.each(&products, move |t, products| {
                let ([sums], own) = (products.get(t), warp(t.thread_idx().z));
                out.for_each_column(t, |column| {
                    if column.at()[0] == own {
                        (0..4).for_each(|e| column.cell::<3>(e).set(sums[e as usize]));
                    }
                });
            });
        }
    }
}

#[test]
fn bytes_are_multiplied_in_each_warp() {
    let (on, warps) = (on(), 3);
    let bytes = |n: usize, step: usize| (0..n).map(|i| (i * step + i / 7) as u8).collect::<Vec<_>>();
    let (left, right) = (bytes(warps * 512, 37), bytes(warps * 256, 101));
    let plus: Vec<i32> = (0..warps as i32 * 128).map(|i| i32::MAX - 100 * i).collect();
    let [a, b] = [&left, &right].map(|bytes| on.upload_blocking(bytes).unwrap());
    let c = on.upload_blocking(&plus).unwrap();
    for signed in [false, true] {
        let mut out = on.upload_blocking(&vec![0i32; warps * 128]).unwrap();
        multiply(&on, warps as u32, signed.into(), &a, &b, &c, &mut out).unwrap();
        let out = on.read_blocking(&out).unwrap();
        for (i, made) in out.iter().enumerate() {
            let (warp, g, t, e) = (i / 128, i / 16 % 8, i / 4 % 4, i % 4);
            let (row, column) = (g + 8 * (e / 2), 2 * t + e % 2);
            let a = left[warp * 512 + row * 32..][..32]
                .iter()
                .map(|v| if signed { i32::from(*v as i8) } else { (*v).into() });
            let b = right[warp * 256 + column * 32..][..32].iter().map(|v| i32::from(*v));
            let sum: i32 = a.zip(b).map(|(a, b)| a * b).sum();
            assert_eq!(*made, plus[warp * 128 + row * 8 + column].wrapping_add(sum), "{signed} {i}");
        }
    }
}
