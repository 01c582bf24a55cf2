//! Batches of images of mixed sizes, on every device: the same bits as one by one, the f64
//! reference, the materialised path, and tables of noise.

use proptest::prelude::*;
use proptest::sample::select;
use testkit::cases;
use testkit::devices::on_each_device;
use testkit::fence::{Fence, Fenced, same};
use testkit::images::images;
use testkit::oracle::{
    self, Content, Image, ImageSpec, PLANES, SCORE_ERROR, SplitMix, assert_close, relevance_error, wide,
};
use thalweg::{LiveBrand, Stream};
use thalweg_vision::kernels::{
    self, BatchLayout, BatchTable, Budget, ParticipatoryMut, Pixels, RelevanceMut, Salience, Scores, Selection,
    SelectionMut, TokensMut,
};

/// What a batch is made with.
#[derive(Clone, Debug)]
struct Setup {
    patch: u32,
    fixation: [f32; 2],
    foveal_bias: f32,
    lo: u32,
    hi: u32,
    budget: u64,
    focus: f64,
    /// A head, a balancer and a query, packed.
    query: Option<(Vec<f32>, Vec<f32>)>,
    /// Bytes that `rgb` starts past a word.
    shift: usize,
}

/// What the kernels make of a batch.
struct Maps {
    features: Vec<f32>,
    entropy: Vec<f32>,
    participatory: Vec<f32>,
    mix: Vec<f32>,
    salience: Vec<f32>,
    relevance: Vec<f32>,
    sides: Vec<i32>,
    cu_seqlens: Vec<i32>,
    patch_id: Vec<i32>,
    counts: Vec<u32>,
    image_cu_seqlens: Vec<i32>,
    image_cu_patches: Vec<i32>,
    tokens: Vec<f32>,
    position: Vec<f32>,
    halves: Vec<u16>,
}

/// The images of a layout in one buffer, with bytes between them that would show.
fn bytes_of(layout: &BatchLayout, images: &[Image]) -> Vec<u8> {
    let mut rgb = vec![u8::FENCE; layout.bytes() as usize];
    for (b, image) in images.iter().enumerate() {
        rgb[layout.byte_range(b)].copy_from_slice(&image.rgb);
    }
    rgb
}

fn layout_of(images: &[Image], patch: u32) -> BatchLayout {
    let sizes: Vec<[u32; 2]> = images.iter().map(|image| [image.height as u32, image.width as u32]).collect();
    BatchLayout::new(&sizes, patch).unwrap()
}

/// All kernels of the fused path, for what `table` says of `rgb`, in buffers sized by `layout`.
fn run<S: LiveBrand>(stream: &Stream<S>, setup: &Setup, layout: &BatchLayout, table: &[u32], rgb: &[u8]) -> Maps {
    let &Setup { patch, fixation: [fy, fx], foveal_bias, lo, hi, budget, focus, shift, .. } = setup;
    let (images, n, largest) = (layout.images(), layout.patches(), layout.largest());
    let (b, patches, bytes) = (images as usize, n as usize, rgb.len() as u32);
    let table = Fenced::new(stream, table, 0);
    let rgb = Fenced::new(stream, rgb, shift);
    let mut features = Fenced::room(stream, PLANES * patches, 0);
    let mut entropy = Fenced::room(stream, patches, 1);
    let batch = BatchTable { images, patches: n, largest, table: table.slice() };
    let pixels = Pixels { rgb: rgb.slice(), bytes, patch, fixation: [fy, fx] };
    kernels::analyze(stream, &batch, &pixels, features.slice_mut(), entropy.slice_mut()).unwrap();

    let mut participatory = Fenced::room(stream, patches, 0);
    let mut mix = Fenced::room(stream, 3 * b, 0);
    let mut salience = Fenced::room(stream, patches, 0);
    let mut relevance = Fenced::room(stream, patches, 0);
    if let Some((coupling, predictor)) = &setup.query {
        let (coupling, predictor) = (Fenced::new(stream, coupling, 0), Fenced::new(stream, predictor, 0));
        let mut summaries = Fenced::room(stream, 12 * (patches / 64 + b), 0);
        let how = Salience { edge: kernels::EDGE, least_peak: 0.0, foveal_bias };
        let out = ParticipatoryMut {
            participatory: participatory.slice_mut(),
            salience: salience.slice_mut(),
            summaries: summaries.slice_mut(),
        };
        kernels::participatory(stream, &batch, how, features.slice(), entropy.slice(), coupling.slice(), out).unwrap();
        kernels::balance(stream, &batch, summaries.slice(), predictor.slice(), false, mix.slice_mut()).unwrap();
        let scores = Scores {
            entropy: entropy.slice(),
            participatory: participatory.slice(),
            summaries: summaries.slice(),
            mix: mix.slice(),
        };
        let out = RelevanceMut { salience: salience.slice_mut(), relevance: relevance.slice_mut() };
        kernels::relevance_with_query(stream, &batch, &scores, out).unwrap();
    } else {
        let out = RelevanceMut { salience: salience.slice_mut(), relevance: relevance.slice_mut() };
        kernels::relevance(stream, &batch, foveal_bias, [0.25, 0.75], features.slice(), entropy.slice(), out).unwrap();
    }

    let gains = Fenced::new(stream, &kernels::gains(lo, hi, focus), 0);
    let room = patches.min(b * (budget / u64::from(lo * lo)) as usize);
    let mut sides = Fenced::room(stream, patches, 1);
    let (mut cu_seqlens, mut patch_id) = (Fenced::room(stream, room + 1, 0), Fenced::room(stream, room, 1));
    let mut counts = Fenced::room(stream, 2, 0);
    let (mut tokens_of, mut selected_of) = (Fenced::room(stream, b + 1, 0), Fenced::room(stream, b + 1, 0));
    let out = SelectionMut {
        sides: sides.slice_mut(),
        cu_seqlens: cu_seqlens.slice_mut(),
        patch_id: patch_id.slice_mut(),
        counts: counts.slice_mut(),
        image_cu_seqlens: tokens_of.slice_mut(),
        image_cu_patches: selected_of.slice_mut(),
    };
    let shares = Budget { lo, hi, tokens: budget };
    kernels::allocate(stream, &batch, shares, relevance.slice(), gains.slice(), out).unwrap();

    let capacity = (b * budget as usize).min(patches * (hi * hi) as usize);
    let (mut tokens, mut position) =
        (Fenced::room(stream, PLANES * capacity, 0), Fenced::room(stream, 2 * capacity, 0));
    let selection = Selection {
        sides: sides.slice(),
        cu_seqlens: cu_seqlens.slice(),
        patch_id: patch_id.slice(),
        counts: counts.slice(),
        most: room as u32,
    };
    let out = TokensMut { tokens: tokens.slice_mut(), position: position.slice_mut(), capacity: capacity as u32 };
    kernels::compress_fused(stream, &batch, &pixels, &selection, out).unwrap();
    let (mut halves, mut other) = (Fenced::room(stream, PLANES * capacity, 0), Fenced::room(stream, 2 * capacity, 0));
    let compress = if budget % 2 == 0 { kernels::compress_fused_f16 } else { kernels::compress_fused_bf16 };
    let out = TokensMut { tokens: halves.slice_mut(), position: other.slice_mut(), capacity: capacity as u32 };
    compress(stream, &batch, &pixels, &selection, out).unwrap();
    let (position, other) = (position.read(), other.read());
    assert!(position.iter().zip(&other).all(|(a, b)| same(a, b)));
    for input in [rgb.read().len() as u32 - bytes, table.read().len() as u32 - 4 * (images + 1)] {
        assert_eq!(input, 0);
    }
    Maps {
        features: features.read(),
        entropy: entropy.read(),
        participatory: participatory.read(),
        mix: mix.read(),
        salience: salience.read(),
        relevance: relevance.read(),
        sides: sides.read(),
        cu_seqlens: cu_seqlens.read(),
        patch_id: patch_id.read(),
        counts: counts.read(),
        image_cu_seqlens: tokens_of.read(),
        image_cu_patches: selected_of.read(),
        tokens: tokens.read(),
        position,
        halves: halves.read(),
    }
}

#[track_caller]
fn same_bits<T: thalweg::DeviceCopy + std::fmt::Debug>(what: &str, batch: &[T], alone: &[T]) {
    assert_eq!(batch.len(), alone.len(), "{what}: length");
    let differing = batch.iter().zip(alone).position(|(a, b)| !same(a, b));
    assert_eq!(differing, None, "{what}: {:?} and {:?}", differing.map(|i| &batch[i]), differing.map(|i| &alone[i]));
}

/// Everything about each image of a batch is what it is alone, bit for bit.
fn check_one_by_one<S: LiveBrand>(stream: &Stream<S>, setup: &Setup, images: &[Image], batch: &Maps) {
    let layout = layout_of(images, setup.patch);
    for (b, image) in images.iter().enumerate() {
        let one = layout_of(std::slice::from_ref(image), setup.patch);
        let alone = run(stream, setup, &one, one.table(), &bytes_of(&one, std::slice::from_ref(image)));
        let range = layout.patch_range(b);
        let what = |name: &str| format!("{name} of image {b}");
        for (name, all, own) in [
            ("entropy", &batch.entropy, &alone.entropy),
            ("participatory", &batch.participatory, &alone.participatory),
            ("salience", &batch.salience, &alone.salience),
            ("relevance", &batch.relevance, &alone.relevance),
        ] {
            same_bits(&what(name), &all[range.clone()], own);
        }
        same_bits(&what("features"), &batch.features[PLANES * range.start..PLANES * range.end], &alone.features);
        same_bits(&what("mix"), &batch.mix[3 * b..3 * b + 3], &alone.mix);
        same_bits(&what("sides"), &batch.sides[range.clone()], &alone.sides);

        let [t0, t1] = [b, b + 1].map(|i| batch.image_cu_seqlens[i] as usize);
        let [k0, k1] = [b, b + 1].map(|i| batch.image_cu_patches[i] as usize);
        assert_eq!([t1 - t0, k1 - k0], [alone.counts[0] as usize, alone.counts[1] as usize], "image {b}");
        let offsets: Vec<i32> = batch.cu_seqlens[k0..=k1].iter().map(|at| at - t0 as i32).collect();
        assert_eq!(offsets, alone.cu_seqlens[..=k1 - k0], "image {b}");
        let ids: Vec<i32> = batch.patch_id[k0..k1].iter().map(|id| id - range.start as i32).collect();
        assert_eq!(ids, alone.patch_id[..k1 - k0], "image {b}");
        let (all, own) = (t0 * PLANES..t1 * PLANES, (t1 - t0) * PLANES);
        same_bits(&what("tokens"), &batch.tokens[all.clone()], &alone.tokens[..own]);
        same_bits(&what("halves"), &batch.halves[all], &alone.halves[..own]);
        same_bits(&what("position"), &batch.position[2 * t0..2 * t1], &alone.position[..2 * (t1 - t0)]);
    }
    // And nothing else.
    let [total, selected] = [batch.counts[0] as usize, batch.counts[1] as usize];
    assert_eq!((batch.image_cu_seqlens[0], batch.image_cu_patches[0]), (0, 0));
    assert_eq!(batch.image_cu_seqlens[images.len()] as usize, total);
    assert_eq!(batch.image_cu_patches[images.len()] as usize, selected);
    assert!(batch.cu_seqlens[selected..].iter().all(|at| *at as usize == total));
    assert!(batch.patch_id[selected..].iter().all(|id| *id == -1));
    assert!(batch.tokens[PLANES * total..].iter().all(|v| same(v, &f32::FENCE)));
    assert!(batch.position[2 * total..].iter().all(|v| same(v, &f32::FENCE)));
    assert!(batch.halves[PLANES * total..].iter().all(|v| *v == u16::FENCE));
}

/// Each image against the reference, and against the materialised path.
fn check_reference<S: LiveBrand>(stream: &Stream<S>, setup: &Setup, images: &[Image], batch: &Maps) {
    let &Setup { patch, fixation: [fy, fx], foveal_bias, lo, hi, budget, focus, .. } = setup;
    let layout = layout_of(images, patch);
    let room = (batch.patch_id.len() as u32).max(1);
    for (b, image) in images.iter().enumerate() {
        let (h, w, range) = (image.height, image.width, layout.patch_range(b));
        let planes = oracle::textures(image, setup.fixation.map(f64::from));
        let features = &batch.features[PLANES * range.start..PLANES * range.end];
        assert_close("features", features, &oracle::features(&planes, h, w, patch as usize), SCORE_ERROR);
        let entropy = &batch.entropy[range.clone()];
        assert_close("entropy", entropy, &oracle::entropy(image, patch as usize), 2e-6);
        let relevance = &batch.relevance[range.clone()];
        if setup.query.is_none() {
            let salience = oracle::salience(&wide(features), f64::from(foveal_bias));
            assert_close("salience", &batch.salience[range.clone()], &salience, 2e-6);
            let (want, spread) = oracle::relevance(&[&wide(entropy), &salience], &[0.25, 0.75]);
            assert_close("relevance", relevance, &want, relevance_error(spread));
        }
        let sides = oracle::allocate(relevance, lo, hi, budget, focus);
        assert_eq!(batch.sides[range.clone()], sides.iter().map(|&n| n as i32).collect::<Vec<_>>(), "sides");
        let want = oracle::compress(&planes, h, w, patch as usize, &sides);
        let [t0, t1] = [b, b + 1].map(|i| batch.image_cu_seqlens[i] as usize);
        let tokens = &batch.tokens[PLANES * t0..PLANES * t1];
        assert_close("tokens", tokens, &want.tokens, SCORE_ERROR);
        assert_close("position", &batch.position[2 * t0..2 * t1], &want.position, 2e-6);

        // By way of the planes: what is added up in another order differs by a rounding or two.
        let (height, width) = (h as u32, w as u32);
        let rgb = stream.upload_blocking(&image.rgb).unwrap();
        let mut planes = stream.alloc(PLANES * h * w).unwrap();
        let mut twin = stream.alloc(PLANES * range.len()).unwrap();
        kernels::textures(stream, height, width, fy, fx, &rgb, &mut planes).unwrap();
        kernels::features(stream, height, width, patch, &planes, &mut twin).unwrap();
        assert_close("features", features, &wide(&stream.read_blocking(&twin).unwrap()), 3e-6);
        if t1 > t0 {
            let sides = stream.upload_blocking(&batch.sides[range]).unwrap();
            let mut cu_seqlens = want.cu_seqlens.clone();
            cu_seqlens.resize(room as usize + 1, 0);
            let mut patch_id = want.patch_id.clone();
            patch_id.resize(room as usize, 0);
            let (cu_seqlens, patch_id) =
                (stream.upload_blocking(&cu_seqlens).unwrap(), stream.upload_blocking(&patch_id).unwrap());
            let counts = stream.upload_blocking(&[(t1 - t0) as u32, want.patch_id.len() as u32]).unwrap();
            let mut twin = stream.alloc(PLANES * (t1 - t0)).unwrap();
            let mut position = stream.alloc(2 * (t1 - t0)).unwrap();
            let selection =
                Selection { sides: &sides, cu_seqlens: &cu_seqlens, patch_id: &patch_id, counts: &counts, most: room };
            let out = TokensMut { tokens: &mut twin, position: &mut position, capacity: (t1 - t0) as u32 };
            kernels::compress(stream, height, width, patch, &planes, &selection, out).unwrap();
            assert_close("tokens", tokens, &wide(&stream.read_blocking(&twin).unwrap()), 3e-6);
            same_bits("position", &batch.position[2 * t0..2 * t1], &stream.read_blocking(&position).unwrap());
        }
    }
}

fn check(setup: &Setup, images: &[Image]) {
    let layout = layout_of(images, setup.patch);
    let rgb = bytes_of(&layout, images);
    on_each_device(|stream| {
        let batch = run(stream, setup, &layout, layout.table(), &rgb);
        check_one_by_one(stream, setup, images, &batch);
        check_reference(stream, setup, images, &batch);
    });
}

/// Numbers for a head, a balancer and a query; any will do.
fn weights(seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut random = SplitMix(seed);
    let mut draw = |n: usize| -> Vec<f32> { (0..n).map(|_| (random.unit() - 0.5) as f32 * 0.5).collect() };
    (draw(3400), draw(18179))
}

fn setups() -> impl Strategy<Value = Setup> {
    let sides = prop_oneof![3 => Just((8u32, 20u32)), 3 => (1u32..9).prop_flat_map(|lo| (Just(lo), lo..lo + 6))];
    let patch = prop_oneof![1u32..=48, select(vec![4, 8, 16, 32, 32, 33, 64, 16384])];
    (
        patch,
        prop_oneof![Just([0.5f32, 0.5]), [0f32..=1.0, 0f32..=1.0]],
        prop_oneof![Just(0f32), 0f32..=1.0],
        sides,
        0u64..1500,
        select(vec![0.8, 0.8, 0.01, 0.99]),
        prop_oneof![Just(None), any::<u64>().prop_map(Some)],
        prop_oneof![4 => Just(0usize), 1 => 1usize..4],
    )
        .prop_map(|(patch, fixation, foveal_bias, (lo, hi), extra, focus, seed, shift)| {
            let budget = u64::from(lo * lo) + extra;
            let query = seed.map(weights);
            Setup { patch, fixation, foveal_bias, lo, hi, budget, focus, query, shift }
        })
}

proptest! {
    #![proptest_config(cases(64))]

    /// Images of all sizes and contents, one of them sometimes of whole quads.
    #[test]
    fn batches(specs in prop::collection::vec(images(90), 1..=5), quads in 0usize..24, setup in setups()) {
        let mut all: Vec<Image> = specs.iter().map(ImageSpec::build).collect();
        if quads > 0 {
            all[0] = ImageSpec { width: 4 * quads, ..specs[0] }.build();
        }
        check(&setup, &all);
    }
}

/// A pixel, lines, whole quads, one more column, one color; budgets below, at and above what all
/// patches could take.
#[test]
fn nasty_sizes_side_by_side() {
    let spec = |(height, width): (usize, usize), content| {
        ImageSpec { height, width, content, saturated: false, seed: (height * 1000 + width) as u64 }.build()
    };
    let mut images: Vec<Image> = [(1, 1), (1, 97), (97, 1), (64, 64), (64, 65), (65, 63), (33, 32), (2, 4)]
        .map(|size| spec(size, Content::Noise))
        .into();
    images.push(spec((70, 68), Content::Constant));
    for (patch, lo, hi, budget) in [
        (32, 8, 20, 64),
        (32, 8, 20, 400),
        (32, 8, 20, 100_000),
        (8, 1, 4, 64 * 16),
        (8, 1, 4, 64 * 16 - 1),
        (1, 1, 1, 65),
    ] {
        let query = (budget % 2 == 0).then(|| weights(budget));
        let setup =
            Setup { patch, fixation: [0.5, 0.5], foveal_bias: 0.25, lo, hi, budget, focus: 0.8, query, shift: 0 };
        check(&setup, &images);
    }
}

/// More images than a block of `pack` has threads, and than fit its first chunk.
#[test]
fn many_small_images() {
    let images: Vec<Image> = (0..1100usize)
        .map(|i| Image {
            height: 1 + i % 3,
            width: 1 + i % 5,
            rgb: [i as u8, 7, 200].repeat((1 + i % 3) * (1 + i % 5)),
        })
        .collect();
    let setup = Setup {
        patch: 2,
        fixation: [0.5, 0.5],
        foveal_bias: 0.0,
        lo: 1,
        hi: 2,
        budget: 5,
        focus: 0.8,
        query: None,
        shift: 0,
    };
    let layout = layout_of(&images, setup.patch);
    on_each_device(|stream| {
        let batch = run(stream, &setup, &layout, layout.table(), &bytes_of(&layout, &images));
        let (mut offsets, mut ids, mut total) = (vec![0], vec![], 0);
        for b in 0..images.len() {
            assert_eq!(batch.image_cu_seqlens[b], total);
            assert_eq!(batch.image_cu_patches[b] as usize, ids.len());
            let range = layout.patch_range(b);
            let want = oracle::allocate(&batch.relevance[range.clone()], 1, 2, 5, 0.8);
            assert_eq!(batch.sides[range.clone()], want.iter().map(|&n| n as i32).collect::<Vec<_>>());
            for (id, &side) in range.zip(&want) {
                if side > 0 {
                    total += (side * side) as i32;
                    offsets.push(total);
                    ids.push(id as i32);
                }
            }
        }
        assert_eq!(batch.counts, [total as u32, ids.len() as u32]);
        offsets.resize(batch.cu_seqlens.len(), total);
        ids.resize(batch.patch_id.len(), -1);
        assert!(batch.cu_seqlens == offsets && batch.patch_id == ids);
    });
}

proptest! {
    #![proptest_config(cases(192))]

    /// Whatever the table holds: nothing outside is written, and what is written is of pixels that
    /// are there.
    #[test]
    fn tables_of_noise(specs in prop::collection::vec(images(40), 1..=5), setup in setups(), seed in any::<u64>()) {
        // All there is is black, and the fences are not.
        let images: Vec<Image> = specs.iter().map(ImageSpec::build).collect();
        let layout = layout_of(&images, setup.patch);
        let rgb = vec![0; layout.bytes() as usize];
        let mut random = SplitMix(seed);
        let table: Vec<u32> = layout
            .table()
            .iter()
            .map(|&v| match random.next() % 8 {
                0..4 => v,
                4 => random.next() as u32,
                5 => u32::MAX,
                6 => v.wrapping_add(random.next() as u32 % 5).wrapping_sub(2),
                _ => random.next() as u32 >> (random.next() % 32),
            })
            .collect();
        on_each_device(|stream| {
            let maps = run(stream, &setup, &layout, &table, &rgb);
            for (what, rows) in [("a feature", maps.features.chunks(PLANES)), ("a token", maps.tokens.chunks(PLANES))] {
                for row in rows {
                    let black = row[..3] == [0.0; 3] && row[6..9] == [0.0; 3] && row[12] == 0.0;
                    let written = black && row.iter().all(|v| (-0.51..=1.42).contains(v));
                    assert!(written || row.iter().all(|v| same(v, &f32::FENCE)), "{what} from nowhere: {row:?}");
                }
            }
            assert!(maps.entropy.iter().all(|v| *v == 0.0 || same(v, &f32::FENCE)));
            let legal = |side: &i32| *side == 0 || *side == i32::FENCE || (setup.lo..=setup.hi).contains(&(*side as u32));
            assert!(maps.sides.iter().all(legal));
        });
    }
}

/// 10 240 allocations with many ties, 128 in a launch.
#[test]
fn allocations_are_those_of_the_reference() {
    let mut random = SplitMix(3);
    for round in 0..80 {
        let counts: Vec<usize> = (0..128).map(|_| 1 + random.next() as usize % [4, 40, 300][round % 3]).collect();
        let (lo, hi) = match random.next() % 4 {
            0 | 1 => (8, 20),
            2 => (1, 1 + random.next() as u32 % 30),
            _ => {
                let lo = 1 + random.next() as u32 % 60;
                (lo, lo + random.next() as u32 % 20)
            }
        };
        let focus = [0.8, 0.5, 1e-3, 0.999][random.next() as usize % 4];
        let patches: usize = counts.iter().sum();
        // Few distinct values, so that keys are equal and the raster order decides.
        let relevance: Vec<f32> = (0..patches)
            .map(|i| {
                let levels = [2, 3, 8, 1 << 24][i % 97 % 4];
                (random.next() % levels) as f32 / (levels - 1) as f32
            })
            .collect();
        // Below, at and above what an image's patches together can take.
        let some = counts[random.next() as usize % 128] as u64 * u64::from(hi * hi);
        let budget = match random.next() % 4 {
            0 => u64::from(lo * lo) * (1 + random.next() % 6) + random.next() % 7,
            1 => some,
            2 => some + 1 + random.next() % 1000,
            _ => 1 + random.next() % some,
        }
        .max(u64::from(lo * lo));

        let sizes: Vec<[u32; 2]> = counts.iter().map(|&n| [1, n as u32]).collect();
        let layout = BatchLayout::new(&sizes, 1).unwrap();
        let steps = oracle::gains(lo, hi, focus);
        let room = patches.min(128 * (budget / u64::from(lo * lo)) as usize);
        on_each_device(|stream| {
            let table = Fenced::new(stream, layout.table(), 0);
            let (map, gains) = (Fenced::new(stream, &relevance, 0), Fenced::new(stream, &steps, 0));
            let mut sides = Fenced::room(stream, patches, 0);
            let (mut cu_seqlens, mut patch_id) = (Fenced::room(stream, room + 1, 0), Fenced::room(stream, room, 0));
            let mut counts_of = Fenced::room(stream, 2, 0);
            let (mut tokens, mut selected) = (Fenced::room(stream, 129, 0), Fenced::room(stream, 129, 0));
            let shares = Budget { lo, hi, tokens: budget };
            let out = SelectionMut {
                sides: sides.slice_mut(),
                cu_seqlens: cu_seqlens.slice_mut(),
                patch_id: patch_id.slice_mut(),
                counts: counts_of.slice_mut(),
                image_cu_seqlens: tokens.slice_mut(),
                image_cu_patches: selected.slice_mut(),
            };
            kernels::allocate(stream, &layout.batch(table.slice()), shares, map.slice(), gains.slice(), out).unwrap();
            let (sides, tokens) = (sides.read(), tokens.read());
            for b in 0..128 {
                let range = layout.patch_range(b);
                let (own, scores) = (&sides[range.clone()], &relevance[range]);
                let want = oracle::allocate(scores, lo, hi, budget, focus);
                assert!(
                    own.iter().zip(&want).all(|(a, b)| *a as u32 == *b),
                    "round {round}, image {b}: {own:?}, {want:?}"
                );
                let cost: i64 = own.iter().map(|n| i64::from(n * n)).sum();
                assert_eq!(i64::from(tokens[b + 1] - tokens[b]), cost);
                check_greedy(own, scores, lo, hi, budget, &steps);
            }
            assert_eq!(counts_of.read()[0], tokens[128] as u32);
            selected.read();
            cu_seqlens.read();
            patch_id.read();
        });
    }
}

/// The cost is within the budget; of the steps that were not taken, the first by key and raster
/// order does not fit or has no gain; every step that was taken comes before it.
fn check_greedy(sides: &[i32], scores: &[f32], lo: u32, hi: u32, budget: u64, gains: &[u32]) {
    let key = |i: usize, to: u32| oracle::quantize(scores[i]) * gains[(to - lo) as usize];
    let cost: u64 = sides.iter().map(|n| (n * n) as u64).sum();
    assert!(cost <= budget);
    let next = |i: usize| if sides[i] == 0 { lo } else { sides[i] as u32 + 1 };
    let open = (0..sides.len()).filter(|&i| next(i) <= hi);
    let Some(first) = open.max_by_key(|&i| (key(i, next(i)), std::cmp::Reverse(i))) else { return };
    let (to, first_key) = (next(first), key(first, next(first)));
    if first_key == 0 {
        return;
    }
    let more = u64::from(to * to) - (sides[first] * sides[first]) as u64;
    assert!(cost + more > budget, "a step of {more} tokens would fit");
    for (i, &side) in sides.iter().enumerate().filter(|(_, side)| **side > 0) {
        let last = key(i, side as u32);
        assert!(last > first_key || last == first_key && i <= first, "patch {i} took a step of a smaller key");
    }
}
