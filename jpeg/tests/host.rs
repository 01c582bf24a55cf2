//! The host's decoder, and files that people have and encoders do not write: on the host and on
//! every device.

use std::fs;

use thalweg_jpeg::{HostDecoder, JpegError, Unsupported, outline};

use crate::encoder::{Kind, Layout, encode, encode_as};
use crate::support::{decode, decode_on_host, golden_folder, on_each_device};

const YCC_420: [[u8; 2]; 3] = [[2, 2], [1, 1], [1, 1]];

fn kind(height: u16, width: u16, factors: &[[u8; 2]]) -> Kind {
    Kind { height, width, factors: factors.to_vec(), restart: 0, coefficients: 12, rgb: false, seed: 9 }
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(golden_folder().join(name).with_extension("jpg")).unwrap()
}

/// Decodes a file on the host and on every device, which must agree, and returns its pixels.
fn pixels(file: &[u8]) -> Result<Vec<u8>, JpegError> {
    let here = decode_on_host(&mut HostDecoder::new(), file);
    on_each_device(|stream| {
        let there = decode(stream, &[file]).remove(0).map(|(image, rgb)| ([image.height, image.width], rgb));
        match there {
            Err(JpegError::Unsupported(kind)) if kind.on_host() => {}
            there => assert!(there == here, "{:?} and {:?}", there.map(|_| ()), here.as_ref().map(|_| ())),
        }
    });
    here.map(|(_, rgb)| rgb)
}

#[test]
fn golden_files_equal_libjpeg_turbo() {
    let mut paths: Vec<_> = fs::read_dir(golden_folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "jpg"));
    assert!(paths.len() > 40, "the golden files are missing");
    let mut decoder = HostDecoder::new();
    let mut wrong = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let file = fs::read(&path).unwrap();
        let decoded = decode_on_host(&mut decoder, &file);
        if name.contains("arithmetic") {
            assert_eq!(decoded, Err(JpegError::Unsupported(Unsupported::Arithmetic)), "{name}");
            continue;
        }
        let expected = fs::read(path.with_extension("safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&expected).unwrap();
        let expected = tensors.tensor("rgb").unwrap();
        match decoded {
            Err(error) => wrong.push(format!("{name}: {error}")),
            Ok(([height, width], rgb)) => {
                assert_eq!(expected.shape(), [height as usize, width as usize, 3], "{name}");
                let different = expected.data().iter().zip(&rgb).filter(|(a, b)| a != b).count();
                if different > 0 {
                    wrong.push(format!("{name}: {different} of {} values", rgb.len()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} files are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// `jpegtran -scans` makes such a file of any photograph.
#[test]
fn scans_of_single_components_give_the_pixels_of_one_scan() {
    for (height, width) in [(64, 64), (61, 75), (7, 3), (130, 9)] {
        for luma in [[1, 1], [2, 1], [1, 2], [2, 2], [4, 1], [4, 2]] {
            for restart in [0, 5] {
                let kind = Kind { restart, ..kind(height, width, &[luma, [1, 1], [1, 1]]) };
                let expected = crate::reference::decode(&encode(&kind)).2;
                for scans in [&[&[0][..], &[1], &[2]][..], &[&[0], &[1, 2]], &[&[1], &[0, 2]], &[&[2], &[1], &[0]]] {
                    let scans: Vec<Vec<usize>> = scans.iter().map(|scan| scan.to_vec()).collect();
                    let layout = Layout { scans: scans.clone(), ..Layout::default() };
                    let found = pixels(&encode_as(&kind, &layout)).unwrap();
                    assert!(found == expected, "{height} x {width}, {luma:?}, {scans:?}, restart {restart}");
                }
            }
        }
    }
    // More blocks in a unit than one scan may have.
    let large = kind(50, 70, &[[2, 2]; 3]);
    let file = encode_as(&large, &Layout { scans: vec![vec![0], vec![1], vec![2]], ..Layout::default() });
    assert_eq!(outline(&file).unwrap().host_only, Some(Unsupported::Sampling));
    assert!(pixels(&file).unwrap() == crate::reference::decode(&encode(&large)).2);
    assert_eq!(pixels(&encode(&large)), Err(JpegError::Unsupported(Unsupported::Sampling)));
    let kind = kind(40, 40, &YCC_420);
    let twice = Layout { scans: vec![vec![0], vec![1], vec![2], vec![0]], ..Layout::default() };
    assert_eq!(pixels(&encode_as(&kind, &twice)), Err(JpegError::Unsupported(Unsupported::Scans)));
    for scans in [vec![vec![0], vec![2]], vec![vec![1, 1], vec![0], vec![2]]] {
        let wrong = Layout { scans, ..Layout::default() };
        assert!(matches!(pixels(&encode_as(&kind, &wrong)), Err(JpegError::Broken { .. })));
    }
    // Of two components with one identifier, a scan of both means each.
    let mut same = encode_as(&kind, &Layout { scans: vec![vec![1], vec![0, 2]], ..Layout::default() });
    let frame = same.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    let scan = same.windows(2).rposition(|w| w == [0xFF, 0xDA]).unwrap();
    assert_eq!([same[frame + 16], same[scan + 7]], [3, 3]);
    (same[frame + 16], same[scan + 7]) = (1, 1);
    assert!(pixels(&same).unwrap() == crate::reference::decode(&encode(&kind)).2);
}

/// The parts of a file: what stands before its first scan, and each scan with what follows it.
fn parts(file: &[u8]) -> Vec<&[u8]> {
    let starts: Vec<usize> = (0..file.len() - 1).filter(|&at| file[at..at + 2] == [0xFF, 0xDA]).collect();
    let ends = starts.iter().copied().chain([file.len()]);
    [0].into_iter().chain(starts.iter().copied()).zip(ends).map(|(start, end)| &file[start..end]).collect()
}

/// Between its scans, a file may change the interval of restarts, and the quantization of a
/// component that has no scan yet.
#[test]
fn what_stands_between_scans_counts_from_there_on() {
    let scans = Layout { scans: vec![vec![0], vec![1], vec![2]], ..Layout::default() };
    let of = |restart| encode_as(&Kind { restart, ..kind(40, 56, &YCC_420) }, &scans);
    let (whole, restarts) = (of(0), of(3));
    let (parts, with_restarts) = (parts(&whole), parts(&restarts));
    let expected = pixels(&whole).unwrap();
    let file = [&[parts[0], parts[1], &[0xFF, 0xDD, 0, 4, 0, 3]], &with_restarts[2..]].concat().concat();
    assert!(pixels(&file).unwrap() == expected);

    let table = [&[0xFF, 0xDB, 0, 67, 1][..], &[1; 64]].concat();
    let late = [parts[0], parts[1], &table, parts[2], parts[3]].concat();
    let early = [parts[0], &table, parts[1], parts[2], parts[3]].concat();
    let found = pixels(&late).unwrap();
    assert!(found == pixels(&early).unwrap() && found != expected);
    on_each_device(|stream| {
        let refused = decode(stream, &[&late]).remove(0).map(drop);
        assert_eq!(refused, Err(JpegError::Unsupported(Unsupported::LateTables)));
    });
}

/// A table of 16 bits has steps that 8 bits do not hold.
#[test]
fn steps_of_quantization_may_have_16_bits() {
    for factors in [&YCC_420[..], &[[1, 1]]] {
        let mut file = encode(&Kind { coefficients: 3, ..kind(45, 70, factors) });
        let narrow = pixels(&file).unwrap();
        while let Some(at) = file.windows(4).position(|bytes| bytes[..3] == [0xFF, 0xDB, 0] && bytes[3] == 67) {
            let wide = file[at + 5..at + 69].iter().enumerate();
            let wide: Vec<u8> = wide.flat_map(|(i, step)| [(i % 3) as u8, *step]).collect();
            let segment = [&[0xFF, 0xDB, 0, 131, 0x10 | file[at + 4]], &wide[..]].concat();
            file.splice(at..at + 69, segment);
        }
        let found = pixels(&file).unwrap();
        assert!(found == crate::reference::decode(&file).2 && found != narrow);
    }
}

/// Any number of bytes of ones may stand before a marker, so before that of a restart, and before
/// the zero that makes them data, too.
#[test]
fn fill_bytes_before_restarts_say_nothing() {
    for factors in [&YCC_420[..], &[[1, 1]]] {
        let file = encode(&Kind { restart: 2, ..kind(45, 70, factors) });
        let data = file.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap();
        let mut filled = file[..data].to_vec();
        for (at, &byte) in file.iter().enumerate().skip(data) {
            if byte == 0xFF && matches!(file.get(at + 1), Some(0 | 0xD0..=0xD7)) {
                filled.extend([0xFF; 3]);
            }
            filled.push(byte);
        }
        assert!(filled.len() > file.len() + 9);
        assert!(pixels(&filled).unwrap() == pixels(&file).unwrap());
    }
}

#[test]
fn cmyk_and_ycck_are_as_pillow_has_them() {
    for factors in [[[1, 1]; 4], [[2, 2], [1, 1], [1, 1], [2, 2]], [[2, 1], [1, 1], [1, 1], [1, 1]]] {
        for adobe in [None, Some(0), Some(2)] {
            let kind = kind(37, 50, &factors);
            let file = encode_as(&kind, &Layout { adobe, ..Layout::default() });
            assert_eq!(outline(&file).unwrap().host_only, Some(Unsupported::Cmyk));
            let expected = crate::reference::decode(&file).2;
            assert!(pixels(&file).unwrap() == expected, "{factors:?}, {adobe:?}");
            // The last component may have the identifier of the first one.
            let mut same = file.clone();
            let frame = same.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
            let scan = same.windows(2).position(|w| w == [0xFF, 0xDA]).unwrap();
            assert_eq!([same[frame + 19], same[scan + 11]], [4, 4]);
            (same[frame + 19], same[scan + 11]) = (1, 1);
            assert!(pixels(&same).unwrap() == expected, "{factors:?}, {adobe:?}");
        }
    }
}

/// What libjpeg passes over: other bytes between segments, a comment shorter than its own length, a
/// restart marker after the last unit, and a number of rows that the header says already.
#[test]
fn what_says_nothing_is_passed_over() {
    for restart in [0, 3] {
        let kind = Kind { restart, ..kind(45, 70, &YCC_420) };
        let whole = encode(&kind);
        let expected = crate::reference::decode(&whole).2;
        let before: [&[u8]; 6] = [
            b"junk",
            &[0, 0xFF, 0, 0xFF, 0xFF, 0],
            &[0xFF, 0xFE, 0, 1],
            &[0xFF, 0xD3, 0xFF, 0x01],
            &[0xFF, 0xDC, 0, 4, 0, 45],
            &[0xFF, 0xEE, 0, 7, b'A', b'd', b'o', b'b', b'e', 9],
        ];
        let after: [&[u8]; 3] = [&[0xFF, 0xD4], &[0xFF, 0xDC, 0, 4, 0, 45], &[0xFF, 0xFE, 0, 0, 7, 7]];
        for (i, bytes) in before.iter().enumerate() {
            let file = encode_as(&kind, &Layout { before_scan: bytes.to_vec(), ..Layout::default() });
            assert!(pixels(&file).is_ok_and(|rgb| rgb == expected), "{i} before the scan");
        }
        for (i, bytes) in after.iter().enumerate() {
            let file = encode_as(&kind, &Layout { after: bytes.to_vec(), ..Layout::default() });
            assert!(pixels(&file).is_ok_and(|rgb| rgb == expected), "{i} after the scan: {:?}", pixels(&file).err());
        }
        // Such a marker means that the rest has another meaning.
        let file = encode_as(&kind, &Layout { before_scan: vec![0xFF, 0xF3, 0, 2], ..Layout::default() });
        assert!(matches!(pixels(&file), Err(JpegError::Broken { .. })));
        let broken = |file: Vec<u8>, wanted: &str| {
            let error = pixels(&file).unwrap_err();
            assert!(matches!(error, JpegError::Broken { what, .. } if what == wanted), "{error}");
        };
        let frame = whole.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
        let twice = Layout { before_scan: whole[frame..frame + 19].to_vec(), ..Layout::default() };
        broken(encode_as(&kind, &twice), "a second frame");
        let scan = vec![0xFF, 0xDA, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0, 0x12, 0x34];
        broken(encode_as(&kind, &Layout { after: scan, ..Layout::default() }), "there is a scan after the last one");
    }
    let ratios = encode(&kind(40, 40, &[[3, 1], [2, 1], [1, 1]]));
    assert_eq!(pixels(&ratios), Err(JpegError::Unsupported(Unsupported::Sampling)));
}

/// A file with both is what JFIF says: YCbCr. A marker of JFIF that is too short says nothing.
#[test]
fn jfif_counts_beside_adobe() {
    let jfif = [0xFF, 0xE0, 0, 16, b'J', b'F', b'I', b'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0];
    let kind = kind(20, 30, &YCC_420);
    let with = |adobe, jfif: &[u8]| {
        pixels(&encode_as(&kind, &Layout { adobe, before_scan: jfif.to_vec(), ..Layout::default() })).unwrap()
    };
    let short = [&jfif[..3], &[15], &jfif[4..17]].concat();
    let (ycbcr, rgb) = (with(None, &[]), with(Some(0), &[]));
    assert!(ycbcr != rgb && with(Some(0), &jfif) == ycbcr && with(Some(0), &short) == rgb);
}

/// A segment of EXIF with an orientation of this type, in the order of this end.
fn exif(big: bool, kind: u16, orientation: u8) -> Vec<u8> {
    let short = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let long = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let value = match kind {
        3 => [short(orientation.into()), [0; 2]].concat(),
        4 => long(orientation.into()).to_vec(),
        _ => vec![orientation, 0, 0, 0],
    };
    let head: &[u8] = if big { b"Exif\0\0MM\0*" } else { b"Exif\0\0II*\0" };
    let entry = [&short(0x0112)[..], &short(kind), &long(1), &value].concat();
    let body = [head, &long(8), &short(1), &entry, &long(0)].concat();
    [&[0xFF, 0xE1][..], &(body.len() as u16 + 2).to_be_bytes(), &body].concat()
}

/// Each orientation alone, in each way to say it, and several of which one counts.
#[test]
fn the_first_orientation_that_is_one_counts() {
    let kind = kind(20, 30, &YCC_420);
    let with = |segments: &[Vec<u8>]| {
        pixels(&encode_as(&kind, &Layout { before_scan: segments.concat(), ..Layout::default() })).unwrap()
    };
    let upright = with(&[]);
    let turned = |orientation| {
        let mut rgb = vec![0; upright.len()];
        for (at, pixel) in upright.chunks(3).enumerate() {
            let place = 3 * thalweg_jpeg::orientation::place(orientation, [20, 30], at / 30, at % 30);
            rgb[place..place + 3].copy_from_slice(pixel);
        }
        rgb
    };
    for orientation in 1..=8 {
        for big in [false, true] {
            for kind in [1, 3, 4] {
                assert!(with(&[exif(big, kind, orientation)]) == turned(orientation.into()), "{orientation}");
            }
        }
    }
    assert!(with(&[exif(true, 2, 6)]) == upright, "a text is no number");
    let mut named_twice = exif(true, 3, 6);
    named_twice[3] += 6;
    named_twice.splice(4..4, *b"Exif\0\0");
    assert!(with(&[named_twice]) == turned(6), "some cameras write the name twice");
    for none in [0, 9] {
        let file = encode_as(&kind, &Layout { before_scan: exif(true, 3, none), ..Layout::default() });
        assert!(pixels(&file).unwrap() == upright && outline(&file).unwrap().height == 20);
    }
    assert!(with(&[exif(true, 3, 6), exif(true, 3, 3)]) == turned(6), "the first one counts");
    let packet = b"\xFF\xE1\0\x33http://ns.adobe.com/xap/1.0/\0tiff:Orientation=\"3\"";
    assert_eq!(packet.len(), 2 + 0x33);
    assert!(with(&[packet.to_vec()]) == turned(3));
    assert!(with(&[packet.to_vec(), exif(true, 3, 6)]) == turned(6), "EXIF counts");
}

/// A batch of one kind of images only, for each of the two ways in which the kernels write pixels.
/// A scan of one component has no groups of blocks, whatever the sampling factors are.
#[test]
fn images_alone_are_as_in_a_batch() {
    for (height, width) in [(9, 3), (512, 8), (45, 70)] {
        let file = encode(&kind(height, width, &YCC_420));
        assert!(pixels(&file).unwrap() == crate::reference::decode(&file).2, "{height} x {width}");
    }
    assert!(pixels(&encode(&kind(20, 30, &[[2, 2]]))).unwrap() == pixels(&encode(&kind(20, 30, &[[1, 1]]))).unwrap());
}

/// The data of an image ends long before the image does, in a file that is long enough for it.
#[test]
fn data_that_is_too_short_is_an_error_of_its_own() {
    for seed in 1..9 {
        let whole = encode(&Kind { seed, ..kind(80, 80, &YCC_420) });
        let data = parts(&whole)[0].len() + 14;
        for kept in [0, 1, 9] {
            let short = [&whole[..data + kept], &[0xFF, 0xD9], &[0; 1000][..]].concat();
            assert_eq!(pixels(&short), Err(JpegError::Truncated), "{kept} bytes");
            let scans = Layout { scans: vec![vec![0], vec![1], vec![2]], ..Layout::default() };
            let whole = encode_as(&Kind { seed, ..kind(80, 80, &YCC_420) }, &scans);
            let parts = parts(&whole);
            let short = [parts[0], &parts[1][..10 + kept], parts[2], parts[3]].concat();
            assert_eq!(pixels(&short), Err(JpegError::Truncated), "{kept} bytes of a scan");
        }
    }
}

/// The frames of Motion JPEG have no Huffman tables: they mean those of T.81, annex K.
#[test]
fn missing_huffman_tables_are_those_of_the_standard() {
    for gray in [false, true] {
        let (mut whole, color) =
            (Vec::new(), if gray { jpeg_encoder::ColorType::Luma } else { jpeg_encoder::ColorType::Rgb });
        let noise: Vec<u8> = (0..if gray { 64 * 48 } else { 3 * 64 * 48 }).map(|i| (i * i % 251) as u8).collect();
        jpeg_encoder::Encoder::new(&mut whole, 90).encode(&noise, 64, 48, color).unwrap();
        let (mut without, mut at) = (whole[..2].to_vec(), 2);
        while whole[at + 1] != 0xDA {
            let end = at + 2 + usize::from(u16::from_be_bytes([whole[at + 2], whole[at + 3]]));
            if whole[at + 1] != 0xC4 {
                without.extend(&whole[at..end]);
            }
            at = end;
        }
        assert!(without.len() + whole.len() - at < whole.len() - 30, "it had tables");
        without.extend(&whole[at..]);
        assert!(pixels(&without).unwrap() == crate::reference::decode(&whole).2);
    }
}

/// A progressive gray file one block high, whose codes of AC are 00, 01, 10 and 110 for these
/// symbols. A scan is its band, its bits and its data.
fn progressive(width: u8, restart: u8, symbols: [u8; 4], scans: &[([u8; 3], &[u8])]) -> Vec<u8> {
    let mut file = vec![0xFF, 0xD8];
    let mut add = |marker: u8, body: &[u8], data: &[u8]| {
        file.extend([0xFF, marker]);
        file.extend((body.len() as u16 + 2).to_be_bytes());
        file.extend([body, data].concat());
    };
    add(0xDB, &[&[0][..], &[64; 64]].concat(), &[]);
    add(0xC2, &[8, 0, 8, 0, width, 1, 1, 0x11, 0], &[]);
    add(0xC4, &[&[0, 1][..], &[0; 15], &[0]].concat(), &[]);
    add(0xC4, &[&[0x10, 0, 3, 1][..], &[0; 13], &symbols].concat(), &[]);
    add(0xDD, &[0, restart], &[]);
    for ([first, last, bits], data) in scans {
        add(0xDA, &[1, 1, 0, *first, *last, *bits], data);
    }
    file.extend([0xFF, 0xD9]);
    file
}

/// A run of ends of blocks that says too much ends at a restart, as in libjpeg.
#[test]
fn a_run_of_blocks_ends_at_a_restart() {
    let of = |first: u8| {
        // The first block ends at once, alone or with the next one, which has a coefficient.
        let scans: [(_, &[u8]); 2] =
            [([0, 0, 0], &[0x7F, 0xFF, 0xD0, 0x7F]), ([1, 63, 0], &[first, 0xFF, 0xD0, 0b1010_1111])];
        pixels(&progressive(16, 1, [0x10, 0, 1, 2], &scans)).unwrap()
    };
    let expected = of(0b0111_1111);
    assert!(expected.chunks(48).all(|row| row[..24] == [128; 24] && row[24..] != [128; 24]), "{expected:?}");
    assert!(of(0b0001_1111) == expected);
}

/// A scan that refines a band changes no coefficient behind the band, and has one bit for each.
#[test]
fn a_refinement_stays_within_its_band() {
    // Coefficient 1 is 3, and coefficient 6 is 2.
    let once: [(_, &[u8]); 2] = [([0, 0, 0], &[0x7F]), ([1, 63, 0], &[0b0111_1010, 0b0011_1111])];
    let expected = pixels(&progressive(8, 0, [0, 2, 0x42, 1], &once)).unwrap();
    let bits: [(_, &[u8]); 5] = [
        ([0, 0, 0], &[0x7F]),
        ([1, 5, 1], &[0b0110_0111]),
        ([6, 63, 1], &[0b0110_0111]),
        ([1, 5, 0x10], &[0b0011_1111]),
        ([6, 63, 0x10], &[0b0001_1111]),
    ];
    assert!(pixels(&progressive(8, 0, [0, 1, 0x42, 2], &bits)).unwrap() == expected);
    let mut wrong = bits;
    wrong[3].1 = &[0b1101_0011]; // a new coefficient of two bits
    assert_eq!(pixels(&progressive(8, 0, [0, 1, 0x42, 2], &wrong)), Err(JpegError::BrokenData));
}

/// A progressive file whose first scan is lost, because the header of it is damaged, is what the
/// other scans say.
#[test]
fn coefficients_may_come_before_their_mean() {
    let whole = golden("progressive-gray");
    let first = whole.windows(2).position(|w| w == [0xFF, 0xDA]).unwrap();
    let mut damaged = whole.clone();
    damaged[first] = b'v';
    let expected = pixels(&whole).unwrap();
    let found = pixels(&damaged).unwrap();
    assert!(found.len() == expected.len() && found != expected);
}

#[test]
fn what_is_not_decoded_is_refused_by_its_name() {
    let whole = encode(&kind(40, 40, &YCC_420));
    let frame = whole.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    let changed = |at: usize, value: u8| {
        let mut file = whole.clone();
        file[frame + at] = value;
        file
    };
    let progressive = golden("progressive-420-q75");
    let last = progressive.windows(2).rposition(|w| w == [0xFF, 0xDA]).unwrap();
    let mut no_rows = changed(5, 0);
    no_rows[frame + 6] = 0;
    let cases = [
        (changed(1, 0xC9), Unsupported::Arithmetic, "arithmetic coding"),
        (changed(1, 0xCA), Unsupported::Arithmetic, "arithmetic coding"),
        (changed(1, 0xC3), Unsupported::Lossless, "lossless"),
        (changed(1, 0xC5), Unsupported::Hierarchical, "hierarchical"),
        (changed(4, 12), Unsupported::Bits(12), "samples of 12 bits"),
        (no_rows, Unsupported::LateHeight, "the number of rows stands after the image"),
        ([&progressive[..last], &[0xFF, 0xD9]].concat(), Unsupported::MissingScans, "without its last scans"),
    ];
    for (file, kind, name) in cases {
        let error = pixels(&file).unwrap_err();
        assert_eq!(error, JpegError::Unsupported(kind));
        assert!(error.to_string().ends_with(name) && !kind.on_host(), "{error}");
    }
}

#[test]
fn the_room_must_be_that_of_the_pixels() {
    let file = encode(&kind(40, 40, &YCC_420));
    for len in [0, 4799, 4801] {
        assert_eq!(HostDecoder::new().decode(&file, &mut vec![0; len]), Err(JpegError::NoRoom));
    }
    assert_eq!(HostDecoder::new().decode(&file, &mut [0; 4800]), Ok(()));
}
