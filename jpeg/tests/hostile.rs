//! Files from strangers: an error or pixels, and never a hang, a panic, an access out of bounds or
//! more memory than the length of the file allows.
//!
//! `THALWEG_FUZZ` sets the number of mutated files, and `THALWEG_FUZZ_SEED` which they are. Without
//! it there are 100 000, and 1000 on the checked device (`THALWEG_CHECK=1`). The long run:
//! `THALWEG_FUZZ=10000000 cargo test -p thalweg-jpeg --test main mutated -- --nocapture`. Twelve
//! busy cores took 7 minutes (`benches/record/2026-11-23-h200-jpeg.txt`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use thalweg::{AnyStream, Device, DeviceKind};
use thalweg_jpeg::{
    DecodedImage, Decoder, EncodedBatch, HostDecoder, JpegError, Unsupported, clear_orientation, outline,
};

use crate::encoder::{Kind, Layout, encode, encode_as};
use crate::support::{decode, decode_on_host, golden_folder, on_each_device};

const YCC_420: [[u8; 2]; 3] = [[2, 2], [1, 1], [1, 1]];

fn kind(height: u16, width: u16, factors: &[[u8; 2]], coefficients: u32) -> Kind {
    Kind { height, width, factors: factors.to_vec(), restart: 0, coefficients, rgb: false, seed: 1 }
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(golden_folder().join(name).with_extension("jpg")).unwrap()
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Files of at most 64 x 64 pixels, most of them smaller.
fn seeds() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let sizes = proptest::sample::select(vec![8u16, 16, 16, 24, 32, 64]);
    let factors = proptest::sample::select(vec![
        vec![[1, 1]],
        YCC_420.to_vec(),
        vec![[2, 1], [1, 1], [1, 1]],
        vec![[1, 2], [1, 1], [1, 1]],
        vec![[1, 1]; 3],
        vec![[4, 1], [1, 1], [2, 1]],
    ]);
    let kinds = (sizes.clone(), sizes, factors, 0..6u16, 1..40u32, 0..u64::MAX).prop_map(
        |(height, width, factors, restart, coefficients, seed)| Kind {
            height: height.saturating_sub((seed % 7) as u16),
            width: width.saturating_sub((seed % 5) as u16),
            factors,
            restart,
            coefficients,
            rgb: seed % 11 == 0,
            seed,
        },
    );
    let random = (0..64).map(|_| encode(&kinds.new_tree(&mut runner).unwrap().current()));
    let mut files: Vec<Vec<u8>> = random.chain(PROGRESSIVE.map(golden)).collect();
    // Files of which only the host decodes some, and a scan for each component.
    for (seed, factors) in [(1, YCC_420.to_vec()), (2, vec![[2, 1], [1, 2], [1, 1]])] {
        let kind = Kind { factors, restart: 4 * seed, ..kind(40, 56, &YCC_420, 12) };
        for scans in [vec![vec![0], vec![1], vec![2]], vec![vec![0], vec![1, 2]]] {
            files.push(encode_as(&kind, &Layout { scans, ..Layout::default() }));
        }
    }
    for transform in [0, 2] {
        let kind = kind(24, 40, &[[2, 2], [1, 1], [1, 1], [2, 2]], 12);
        files.push(encode_as(&kind, &Layout { adobe: Some(transform), ..Layout::default() }));
    }
    files
}

/// Progressive files of at most 64 x 64 pixels.
const PROGRESSIVE: [&str; 8] = [
    "progressive-420-q75",
    "progressive-422-q90",
    "progressive-444-q95",
    "progressive-gray",
    "progressive-q10",
    "progressive-restart",
    "progressive-rgb",
    "progressive-tiny3x18",
];

/// Changes a few bytes of a file. In two of three files it changes only the coded data, because the
/// parser refuses most files with another header.
fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    let data = if random.below(3) == 0 { 2 } else { scan(file, random) };
    for _ in 0..1 + random.below(4) {
        let at = data + random.below(file.len() - data);
        match random.below(16) {
            0 | 1 => file[at] = 0xFF,
            2..=7 => file[at] ^= 1 << random.below(8),
            8..=10 => file[at] = random.below(256) as u8,
            11 | 12 => file.insert(at, random.below(256) as u8),
            13 => {
                let marker = [0xD9, 0xDA, 0xC4, 0xDB, 0xDD, 0xD0, 0xC0][random.below(7)];
                file.splice(at..at, [0xFF, marker]);
            }
            14 if random.below(4) == 0 => file.truncate(at + 1),
            _ if file.len() > data + 1 => _ = file.remove(at),
            _ => {}
        }
    }
}

/// Where the coded data of a file starts: that of any of its scans.
fn scan(file: &[u8], random: &mut Random) -> usize {
    let scans: Vec<usize> = (0..file.len() - 3).filter(|&at| file[at..at + 2] == [0xFF, 0xDA]).collect();
    let at = scans[random.below(scans.len())];
    at + 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]))
}

#[test]
fn mutated_files_are_errors_or_pixels() {
    const BATCH: u64 = 512;
    let checked = std::env::var_os("THALWEG_CHECK").is_some();
    let total = number("THALWEG_FUZZ").unwrap_or(if checked { 1000 } else { 100_000 });
    let start = number("THALWEG_FUZZ_SEED").unwrap_or(1);
    let seeds = seeds();
    let whole = &seeds[1];
    // A CPU device for each core, and every GPU.
    let cores = if checked { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let gpus = Device::all().into_iter().filter(|device| device.kind() != DeviceKind::Cpu);
    let devices: Vec<Device> = (0..cores).map(|_| Device::new_cpu().unwrap()).chain(gpus).collect();
    let (next, pixels, longest) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for &device in &devices {
            let (next, pixels, longest, seeds) = (&next, &pixels, &longest, &seeds);
            scope.spawn(move || {
                let stream = AnyStream::new(device).unwrap();
                let mut decoder = Decoder::new(device);
                let mut host = HostDecoder::new();
                let mut files: Vec<Vec<u8>> = vec![Vec::new(); BATCH as usize];
                loop {
                    let batch = next.fetch_add(1, Ordering::Relaxed);
                    if batch * BATCH >= total {
                        return;
                    }
                    // The number of the batch decides its files, so that one batch can be run
                    // again.
                    let mut random = Random((start << 32 ^ batch).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
                    for file in &mut files {
                        file.clone_from(&seeds[random.below(seeds.len())]);
                        mutate(file, &mut random);
                    }
                    let views: Vec<&[u8]> = files.iter().map(Vec::as_slice).chain([&whole[..]]).collect();
                    let before = Instant::now();
                    let read = decoder.read(&views).unwrap();
                    let images = stream.enter(|s| decoder.decode(s, read)).unwrap();
                    let images = images.synchronize().unwrap_or_else(|e| panic!("batch {batch}: {e}"));
                    longest.fetch_max(before.elapsed().as_micros() as u64, Ordering::Relaxed);
                    let good = (0..views.len() - 1).filter(|&i| images.image(i).is_ok()).count();
                    pixels.fetch_add(good as u64, Ordering::Relaxed);
                    let found: Vec<_> = (0..views.len()).map(|i| images.image(i)).collect();
                    let rgb = stream.enter(|s| {
                        let rgb = s.bind(images.rgb).unwrap();
                        let of =
                            |image: &DecodedImage| s.read_blocking(rgb.slice(image.bytes.clone()).unwrap()).unwrap();
                        found.iter().map(|image| image.as_ref().map(of).unwrap_or_default()).collect::<Vec<_>>()
                    });
                    for (i, ((file, found), rgb)) in views.iter().zip(&found).zip(rgb).enumerate() {
                        let here = decode_on_host(&mut host, file);
                        let mut stored = file.to_vec();
                        clear_orientation(&mut stored);
                        let heads = [&stored, *file].map(|file| outline(file).map(drop));
                        assert!(heads[0] == heads[1], "batch {batch}, file {i}: {heads:?}");
                        match found {
                            Ok(image) => {
                                let there = ([image.height, image.width], rgb);
                                let whole = here.as_ref().is_ok_and(|pixels| *pixels == there);
                                assert!(whole, "batch {batch}, file {i}: other pixels on the host: {:?}", here.err());
                            }
                            // The host may decode it.
                            Err(JpegError::Unsupported(kind)) if kind.on_host() => {}
                            Err(error) => assert!(here.is_err(), "batch {batch}, file {i}: the host takes it: {error}"),
                        }
                    }
                    assert!(found.last().unwrap().is_ok(), "batch {batch}: a whole file suffers from its neighbors");
                }
            });
        }
    });
    let (done, pixels) = (total.next_multiple_of(BATCH), pixels.into_inner());
    let rate = done as f64 / begin.elapsed().as_secs_f64();
    let longest = Duration::from_micros(longest.into_inner());
    eprintln!(
        "{done} mutated files: {pixels} gave pixels, {} errors; {rate:.0} files/s on {} devices, the longest batch of {BATCH} took {longest:.1?}",
        done - pixels,
        devices.len(),
    );
    assert!(pixels > 0 && pixels < done);
}

/// Every byte at which a file can end, for files of several kinds.
#[test]
fn files_cut_at_any_byte_are_errors_and_their_neighbors_are_not() {
    let kinds = [kind(50, 70, &YCC_420, 10), kind(9, 33, &[[1, 1]], 20)];
    let mut files: Vec<Vec<u8>> = kinds.iter().map(|kind| encode(&Kind { restart: 3, ..kind.clone() })).collect();
    files.push(encode(&kind(40, 24, &[[2, 1], [1, 1], [1, 1]], 30)));
    files.extend(["exif3", "tiny5x16-420", "tiny17x2-422", "progressive-tiny3x18"].map(golden));
    on_each_device(|stream| {
        for whole in &files {
            let Ok((_, expected)) = &decode(stream, &[whole])[0] else { panic!("a whole file") };
            for start in (0..whole.len()).step_by(256) {
                let cuts: Vec<usize> = (start..whole.len().min(start + 256)).collect();
                let mut files: Vec<&[u8]> = cuts.iter().map(|&cut| &whole[..cut]).collect();
                files.push(whole);
                let mut decoded = decode(stream, &files);
                assert!(decoded.pop().unwrap().unwrap().1 == *expected);
                for (cut, decoded) in cuts.iter().zip(decoded) {
                    let error = decoded.err().unwrap_or_else(|| panic!("cut at {cut}: decoded"));
                    assert!(matches!(error, JpegError::NotJpeg | JpegError::Truncated), "cut at {cut}: {error}");
                }
            }
        }
    });
}

#[test]
fn data_that_ends_before_its_image_is_an_error() {
    for restart in [0, 3] {
        let whole = encode(&Kind { restart, ..kind(50, 70, &YCC_420, 10) });
        let end = whole.len() - 2;
        // The last block has 2 bits at least, and up to 7 bits of padding follow it.
        let files: Vec<Vec<u8>> = (2..40).map(|cut| [&whole[..end - cut], &[0xFF, 0xD9]].concat()).collect();
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        on_each_device(|stream| {
            for (i, decoded) in decode(stream, &files).into_iter().enumerate() {
                let error = decoded.err().unwrap_or_else(|| panic!("{} bytes less: decoded", i + 2));
                assert!(!matches!(error, JpegError::Unsupported(_) | JpegError::NotJpeg), "{error}");
            }
        });
    }
}

/// The segments of a progressive file from its first scan on, without the end of the image.
fn scans(file: &[u8]) -> Vec<&[u8]> {
    let starts: Vec<usize> = (0..file.len() - 1).filter(|&at| file[at..at + 2] == [0xFF, 0xDA]).collect();
    let ends = starts[1..].iter().copied().chain([file.len() - 2]);
    starts.iter().zip(ends).map(|(&start, end)| &file[start..end]).collect()
}

/// Scans that an encoder has no use for: many more than there are bits of coefficients, in another
/// order, of components or bits that do not exist. Each ends, and the file beside it is decoded.
#[test]
fn scans_that_no_encoder_writes_end() {
    let whole = golden("progressive-420-q75");
    let scans = scans(&whole);
    let head = &whole[..whole.windows(2).position(|w| w == [0xFF, 0xDA]).unwrap()];
    let end = &[0xFF, 0xD9][..];
    let file = |scans: &[&[u8]]| [head, &scans.concat(), end].concat();
    assert_eq!(file(&scans), whole);
    // The scan that refines all DC coefficients takes a bit for each block.
    let refines = scans.iter().copied().find(|scan| scan[4] == 3 && scan[13] == 0x10).unwrap();
    let many = file(&[&scans[..], &vec![refines; 1000]].concat());
    let late = file(&scans[1..]);
    let none = file(&[scans[1]]);
    let first_only = file(&scans[..1]);
    let changed = |at: usize, value: u8| {
        let mut scan = scans[0].to_vec();
        scan[at] = value;
        file(&[&[&scan[..]], &scans[1..]].concat())
    };
    // Another number of components, a component that is not there, coefficients 0 to 5, bits
    // above 13.
    let wrong = [changed(4, 4), changed(5, 77), changed(12, 5), changed(13, 0x0E), changed(13, 0x31)];
    let mut files = vec![&whole[..], &many, &late, &none, &first_only];
    files.extend(wrong.iter().map(Vec::as_slice));
    on_each_device(|stream| {
        let decoded = decode(stream, &files);
        let names: Vec<_> = decoded.iter().map(|d| d.as_ref().map(|_| ()).map_err(|e| *e)).collect();
        assert_eq!(names[0], Ok(()));
        assert_eq!(names[1], Err(JpegError::Unsupported(Unsupported::Scans)));
        // With its first scan, this file loses a Huffman table.
        assert!(matches!(names[2], Err(JpegError::Broken { .. })), "{:?}", names[2]);
        assert!(matches!(names[3], Err(JpegError::Broken { .. })), "{:?}", names[3]);
        // libjpeg would guess what is missing.
        assert_eq!(names[4], Err(JpegError::Unsupported(Unsupported::MissingScans)));
        assert!(names[5..].iter().all(|name| matches!(name, Err(JpegError::Broken { .. }))), "{:?}", &names[5..]);
    });
}

/// Puts a segment right after the start of a file.
fn with_segment(file: &[u8], marker: u8, length: usize, body: &[u8]) -> Vec<u8> {
    [&file[..2], &[0xFF, marker], &(length as u16).to_be_bytes(), body, &file[2..]].concat()
}

#[test]
fn tables_that_never_end_are_errors() {
    let whole = encode(&kind(16, 16, &YCC_420, 10));
    let full =
        |counts: [u8; 16]| [&[0u8][..], &counts, &vec![1; counts.iter().map(|n| usize::from(*n)).sum()]].concat();
    let mut one_each = [0; 16];
    one_each[15] = 255;
    let all_ones = full([1; 16]);
    let too_many = full([255; 16]);
    let cases = [
        // More codes of one bit than fit, the two that fit, codes of every length, more than 256 of
        // them, which fit or do not, and a size that no DC coefficient has.
        (0xC4, full([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), false),
        (0xC4, full([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), false),
        (0xC4, all_ones, true),
        (0xC4, full([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 255]), false),
        (0xC4, [&[0, 1][..], &[0; 15], &[16]].concat(), false),
        (0xC4, too_many, false),
        (0xC4, full(one_each), true),
        // Tables that say that more follows, and that stop in the middle.
        (0xC4, vec![0; 65_000], true),
        (0xC4, [&[0][..], &[200; 16], &[0; 50]].concat(), false),
        (0xDB, vec![0; 65_000], true),
        (0xDB, vec![0; 64], false),
    ];
    let mut files: Vec<Vec<u8>> =
        cases.iter().map(|(marker, body, _)| with_segment(&whole, *marker, body.len() + 2, body)).collect();
    // Lengths of segments that lie: shorter than themselves, and longer than the file.
    for length in [0, 1, 65_535] {
        files.push(with_segment(&whole, 0xC4, length, &[]));
        files.push(with_segment(&whole, 0xFE, length, &[]));
    }
    // Thousands of tables, each in the place of the one before it.
    let many = (0..2000).fold(whole[..2].to_vec(), |mut file, _| {
        file.extend([0xFF, 0xC4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        file
    });
    files.push([&many, &whole[2..]].concat());
    files.push(whole.clone());
    let views: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    on_each_device(|stream| {
        let decoded = decode(stream, &views);
        for ((_, _, may_be_legal), decoded) in cases.iter().zip(&decoded) {
            assert!(*may_be_legal || matches!(decoded, Err(JpegError::Broken { .. })), "{:?}", decoded.as_ref().err());
        }
        for (i, decoded) in decoded[cases.len()..cases.len() + 6].iter().enumerate() {
            let error = decoded.as_ref().err();
            // A comment of length 0 or 1 is empty.
            match i {
                1 | 3 => assert_eq!(error, None),
                0 | 2 => assert!(matches!(error, Some(JpegError::Broken { .. })), "{error:?}"),
                _ => assert!(matches!(error, Some(JpegError::Broken { .. } | JpegError::Truncated)), "{error:?}"),
            }
        }
        let [.., many, whole] = &decoded[..] else { panic!("there are files") };
        assert!(whole.is_ok() && many.as_ref().map(|m| &m.1) == whole.as_ref().map(|w| &w.1));
    });
}

#[test]
fn sizes_that_lie_ask_for_no_memory() {
    let whole = encode(&kind(16, 16, &YCC_420, 10));
    let frame = whole.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    let claim = |height: u16, width: u16| {
        let mut lying = whole.clone();
        lying[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
        lying[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
        lying
    };
    let files = [claim(16384, 16384), claim(65500, 65500), claim(0, 16), claim(16, 0), claim(1, 16384)];
    let views: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    // 65500 x 65500 in 200 bytes.
    let short = [&files[1][..100], &[0xFF; 98], &[0xFF, 0xD9]].concat();
    let check = |files: &[&[u8]], device: Device| {
        device.per_thread(|stream| decode(stream, files).into_iter().map(|image| image.map(|_| ())).collect::<Vec<_>>())
    };
    let gpus = Device::all().into_iter().filter(|device| device.kind() != DeviceKind::Cpu);
    for device in gpus.chain([Device::new_cpu().unwrap()]) {
        device.limit_memory(Some(1 << 20)); // of a CPU device
        let decoded = check(&views, device).unwrap();
        let large = Unsupported::Size { height: 65500, width: 65500 };
        assert_eq!(decoded[0], Err(JpegError::Truncated));
        assert_eq!(decoded[1], Err(JpegError::Unsupported(large)));
        assert_eq!(decoded[2], Err(JpegError::Unsupported(Unsupported::LateHeight)));
        assert!(matches!(decoded[3], Err(JpegError::Broken { .. })));
        assert_eq!(decoded[4], Err(JpegError::Truncated));
        assert!(check(&[&short], device).unwrap()[0].is_err());
    }
}

/// The kernels count the coefficients of a batch in 32 bits. A batch has at most as many blocks,
/// and a file beyond them is refused with a reason.
#[test]
fn a_batch_has_no_more_blocks_than_it_can_count() {
    let small = encode(&kind(8, 8, &[[1, 1]], 10));
    let mut large = small.clone();
    let frame = large.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    large[frame + 5..frame + 9].copy_from_slice(&[0x40, 0, 0x40, 0]); // 2048 x 2048 blocks
    let end = large.len() - 2;
    large.splice(end..end, [0; 1 << 20]); // two bits for each
    let files = [&[&large[..]; 8][..], &[&small]].concat();
    let batch = EncodedBatch::new(Device::cpu().unwrap(), &files).unwrap();
    let refused = Err(JpegError::Broken { at: 0, what: "the batch is too large for one call" });
    for (at, file) in files.iter().enumerate() {
        let image = batch.image(at).map(|image| image.width);
        assert_eq!(image, if at < 8 { Ok(16384) } else { refused }, "{at}: {} bytes", file.len());
    }
    let batch = EncodedBatch::new(Device::cpu().unwrap(), &files[1..]).unwrap();
    assert!((0..8).all(|at| batch.image(at).is_ok()), "those that are left fit");
}

/// A file of 4:4:4 whose blocks have 128 bits each: a piece has 8 of them, and a unit 3, so a
/// decoder that starts within the data never learns which component it is in.
fn out_of_step(units: u16) -> Vec<u8> {
    let side = 8 * units;
    let mut file = vec![0xFF, 0xD8];
    let mut segment = |marker: u8, body: &[u8]| {
        file.extend([0xFF, marker]);
        file.extend((body.len() as u16 + 2).to_be_bytes());
        file.extend(body);
    };
    segment(0xDB, &[&[0], &[1; 64][..]].concat());
    let one_code = |kind: u8| [&[kind, 1][..], &[0; 15], &[1]].concat(); // the code 0 is a value of one bit
    segment(0xC4, &one_code(0));
    segment(0xC4, &one_code(0x10));
    let [high, low] = side.to_be_bytes();
    segment(0xC0, &[8, high, low, high, low, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
    segment(0xDA, &[3, 1, 0, 2, 0, 3, 0, 0, 63, 0]);
    let mut random = Random(5);
    let bytes = usize::from(units) * usize::from(units) * 3 * 16;
    file.extend((0..bytes).map(|_| random.below(256) as u8 & 0x55));
    file.extend([0xFF, 0xD9]);
    file
}

/// Pieces that never fall into step are decoded one after another, up to a bound.
#[test]
fn data_that_never_falls_into_step_ends() {
    let (short, long) = (out_of_step(34), out_of_step(80));
    let expected = crate::reference::decode(&short).2;
    on_each_device(|stream| {
        let decoded = decode(stream, &[&short, &long]);
        assert!(decoded[0].as_ref().unwrap().1 == expected);
        let second = decoded[1].as_ref().map(|_| "pixels");
        assert_eq!(second, Err(&JpegError::Unsupported(Unsupported::Steps)));
    });
}
