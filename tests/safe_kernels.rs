//! Kernels without `unsafe` on the CPU device: who owns which element, and what is reported. Larger
//! kernels, which also run on a GPU, are in `benches/safe`.
#![forbid(unsafe_code)]

use thalweg::{Device, Stream, kernel, ptx, stream_tags};

ptx! {}
stream_tags!(Work);

fn on() -> Stream<Work> {
    Device::cpu().unwrap().stream().unwrap()
}

/// Declares a kernel that adds 1 to each element that a thread owns, and 1 more to `seen` for each.
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
    a_block_each [block(y), block] (w, h) (8);
    ranks_of_a_block [block, rank] (h) (4, 2, 2);
    one_thread [all, all] (2, 2, 2) (4, 2);
    diagonal [x, x] (2) (4);
    too_few [y, x] (1) (3, 2);
}

/// Runs a kernel of `counting!` on `h` x `w` elements, and returns how often each was counted, and how
/// many elements were counted in all.
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
        let once = (vec![1; (h * w) as usize], h * w);
        assert_eq!(counts!(rows_and_columns h, w), once, "{h} x {w}");
        assert_eq!(counts!(columns_of_four h, w), once, "{h} x {w}");
        assert_eq!(counts!(whole_rows h, w), once, "{h} x {w}");
        assert_eq!(counts!(strided h, w), once, "{h} x {w}");
        assert_eq!(counts!(a_block_each h, w), once, "{h} x {w}");
        assert_eq!(counts!(ranks_of_a_block h, w), once, "{h} x {w}");
        // The threads that differ only in coordinates that no owner names own nothing, but one.
        assert_eq!(counts!(one_thread h, w), once, "{h} x {w}");
    }
}

#[test]
fn what_no_thread_owns_stays_as_it_is() {
    let (y, seen) = counts!(diagonal 3, 5);
    assert_eq!((y, seen), ((0..15).map(|i| u32::from(i / 5 == i % 5)).collect(), 3));
    let (y, seen) = counts!(too_few 3, 5);
    assert_eq!((y, seen), ((0..15).map(|i| u32::from(i / 5 < 2 && i % 5 < 3)).collect(), 6));
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
    fn warps(b: impl Cooperative, y: Out<u32>[9, 64] by [all, rank]) grid(1) block(64)
    {
        let rank = b.each((), |t, ()| t.rank());
        let float = b.each((), |t, ()| t.rank() as f32);
        let odd = b.each((), |t, ()| t.rank() % 2 == 1);
        let (xor, up, down) = (b.shuffle_xor(&rank, 5), b.shuffle_up(&rank, 3), b.shuffle_down(&rank, 3));
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
    warps(&on, &mut y).unwrap();
    let y = on.read_blocking(&y).unwrap();
    for i in 0..64u32 {
        let (warp, lane) = (i / 32 * 32, i % 32);
        let sum = 32 * warp + 31 * 16;
        let up = if lane < 3 { i } else { i - 3 };
        let down = if lane > 28 { i } else { i + 3 };
        let want = [warp + (lane ^ 5), up, down, 0xaaaa_aaaa, sum, sum, warp + 31, warp, 1];
        assert_eq!(y.iter().skip(i as usize).step_by(64).copied().collect::<Vec<_>>(), want, "thread {i}");
    }
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
