//! What kernels of users take and how they are written: numbers of every kind by value, constants
//! in the clauses, and threads that index buffers by their own `u32`. On a GPU the kernel runs from
//! PTX that thalweg-ptx-builder made of this declaration.

use testkit::devices::devices;
use thalweg::{Error, kernel};

const BLOCK: u32 = 32;

kernel! {
    /// Writes `value` and `n` to each other element, beginning with the second one if `odd`, and 7
    /// to the others. If `reverse`, it counts from the end.
    unsafe fn comb(cx: impl Simt, n: usize, odd: bool, value: u8, reverse: bool, x: Out<u64>)
    require { x.len() == n, value > 0 || !odd }
    grid(n.div_ceil(BLOCK)) block(BLOCK)
    {
        let i = cx.global_x();
        if (i as usize) < n {
            let at = if reverse { n - 1 - i as usize } else { i as usize };
            x.set(cx, at, if (i % 2 == 1) == odd { u64::from(value) << 40 | n as u64 } else { 7 });
        }
    }
}

#[test]
fn truth_values_and_sizes_arrive_as_they_were_given() {
    for &device in devices() {
        let lane = thalweg::AnyStream::new(device).unwrap();
        lane.enter(|s| {
            for n in [0usize, 1, 31, 32, 33, 100] {
                for (odd, reverse) in [(false, false), (false, true), (true, false), (true, true)] {
                    let mut x = s.alloc_zeroed::<u64>(n)?;
                    comb(s, n, odd, 200, reverse, &mut x)?;
                    let expected = |i: usize| {
                        let thread = if reverse { n - 1 - i } else { i };
                        if (thread % 2 == 1) == odd { 200 << 40 | n as u64 } else { 7 }
                    };
                    let got = s.read_blocking(&x)?;
                    assert!((0..n).all(|i| got[i] == expected(i)), "{device}, {n} {odd} {reverse}: {got:?}");
                }
            }
            let mut x = s.alloc_zeroed::<u64>(1)?;
            let refused = |result: Result<(), Error>| result.unwrap_err().to_string();
            let text = refused(comb(s, usize::MAX, false, 1, true, &mut x));
            assert!(text.contains("`x.len() == n`") && text.contains("reverse = true"), "{text}");
            let text = refused(comb(s, 1, true, 0, false, &mut x));
            assert!(text.contains("`value > 0 || !odd`") && text.contains("odd = true"), "{text}");
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}

/// The page for a first kernel shows the files of `examples/user-kernel`, with the paths of a
/// package beside a checkout of thalweg.
#[test]
fn the_page_for_a_first_kernel_shows_the_example() {
    let page = include_str!("../docs/first-kernel.md");
    let shown: Vec<&str> = page
        .split("\n```")
        .filter_map(|part| ["toml\n", "rust\n"].iter().find_map(|language| part.strip_prefix(language)))
        .collect();
    let manifest = include_str!("../examples/user-kernel/Cargo.toml");
    let manifest = manifest.replace("\"../../", "\"../thalweg/").replace("\"../..\"", "\"../thalweg\"");
    // The page adds the second part of the library later.
    let library = include_str!("../examples/user-kernel/src/lib.rs");
    let (first, second) = library.split_at(library.find("\nkernel! {\n    /// Computes the matrix product").unwrap());
    let files = [
        &*manifest,
        include_str!("../examples/user-kernel/build.rs"),
        first,
        include_str!("../examples/user-kernel/src/main.rs"),
        second.trim_start(),
        include_str!("../examples/user-kernel/examples/product.rs"),
    ];
    assert_eq!(shown.len(), files.len(), "the page shows other files than those of the example");
    for (shown, file) in shown.into_iter().zip(files) {
        assert_eq!(format!("{shown}\n"), file);
    }
}
