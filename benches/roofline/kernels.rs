//! Measures the kernels of one image: textures, means and tokens. They take buffers in turn that
//! together exceed the cache.

use testkit::oracle;
use thalweg::{DeviceSlice, LiveBrand, Stream};
use thalweg_vision::kernels::{self, BatchLayout, TokensMut};

use crate::Result;
use crate::batch;
use crate::bencher::{Bench, Bencher, Buffer, compare};
use crate::cuda_cpp;
use crate::images::{Content, Photo, Size};

/// Side of a patch, and tokens of a compression.
pub(crate) const PATCH: u32 = 32;
pub(crate) const TOKENS: usize = 4096;
/// The fixation point, which is the center.
pub(crate) const FIXATION: f32 = 0.5;

/// The size of the image on which everything is checked before it is timed. It has partial patches,
/// and its width is no multiple of 8.
pub(crate) const CHECKED: Size = Size { name: "301 x 452", images: 1, height: 301, width: 452 };

/// The image that everything is checked on, as the oracle takes it.
pub(crate) fn checked(content: Content, photo: &Photo) -> oracle::Image {
    let (height, width) = (CHECKED.height as usize, CHECKED.width as usize);
    oracle::Image { height, width, rgb: content.pixels(CHECKED, photo) }
}

/// Compares textures, features and entropy, by every kernel that makes them, with the oracle.
pub(crate) fn check(bench: &Bencher, photo: &Photo) -> Result {
    let (stream, Size { height, width, .. }) = (bench.stream, CHECKED);
    let (h, w) = (height as usize, width as usize);
    for content in Content::ALL {
        let image = checked(content, photo);
        let data = &image.rgb;
        let buffer = stream.upload_blocking(&[data, &[0; 16][..]].concat())?;
        let odd = stream.upload_blocking(&[&[0], &**data, &[0; 16]].concat())?;
        let (rgb, odd) = (buffer.slice(..data.len())?, odd.slice(1..)?);
        let want = oracle::textures(&image, [f64::from(FIXATION); 2]);
        let mut planes = stream.alloc::<f32>(want.len())?;
        for rgb in [rgb, odd.slice(..data.len())?] {
            stream.fill(&mut planes, f32::NAN)?;
            kernels::textures(&stream, height, width, FIXATION, FIXATION, rgb, &mut planes)?;
            compare("textures", &stream.read_blocking(&planes)?, &want, 1e-5)?;
        }
        for patch in [8, PATCH] {
            let want = [oracle::features(&want, h, w, patch as usize), oracle::entropy(&image, patch as usize)];
            let (mut features, mut entropy) = (stream.alloc(want[0].len())?, stream.alloc(want[1].len())?);
            let same = |by: &str, features: &Buffer<f32>, entropy: &Buffer<f32>| -> Result {
                compare(&format!("features of {by}"), &stream.read_blocking(features)?, &want[0], 1e-5)?;
                compare(&format!("entropy of {by}"), &stream.read_blocking(entropy)?, &want[1], 1e-5)?;
                Ok(())
            };
            kernels::features(&stream, height, width, patch, &planes, &mut features)?;
            kernels::entropy(&stream, height, width, patch, rgb, &mut entropy)?;
            same("planes", &features, &entropy)?;
            let layout = BatchLayout::new(&[[height, width]], patch)?;
            let table = stream.upload_blocking(layout.table())?;
            for rgb in [&buffer, odd] {
                stream.fill(&mut features, f32::NAN)?;
                let rgb = rgb.slice(..layout.bytes() as usize)?;
                analyze_into(&stream, &layout, &table, rgb, &mut features, &mut entropy)?;
                same("analyze", &features, &entropy)?;
            }
        }
    }
    Ok(())
}

/// Images on the device, in so many buffers that each use reads memory and not the cache.
pub(crate) struct Scene {
    pub(crate) size: Size,
    pub(crate) content: Content,
    pub(crate) layout: BatchLayout,
    table: Buffer<u32>,
    rgb: Vec<Buffer<u8>>,
}

impl Scene {
    fn new(bench: &Bencher, size: Size, content: Content, photo: &Photo) -> Result<Self> {
        let layout = BatchLayout::new(&vec![[size.height, size.width]; size.images], PATCH)?;
        let pixels = content.pixels(size, photo);
        let mut data = vec![0; layout.bytes() as usize];
        for (b, image) in pixels.chunks(pixels.len() / size.images).enumerate() {
            data[layout.byte_range(b)].copy_from_slice(image);
        }
        let table = bench.stream.upload_blocking(layout.table())?;
        Ok(Self { size, content, layout, table, rgb: bench.copies_of(&data)? })
    }

    fn patches(&self) -> usize {
        self.layout.patches() as usize
    }

    /// All images.
    pub(crate) fn batch(&self, i: usize) -> &Buffer<u8> {
        &self.rgb[i % self.rgb.len()]
    }

    /// Returns the number of buffers of all images that take turns.
    pub(crate) fn turns(&self) -> usize {
        self.rgb.len()
    }

    /// The first buffer.
    fn image(&self, i: usize) -> Result<&DeviceSlice<Bench, u8>> {
        Ok(self.batch(i).slice(self.layout.byte_range(0))?)
    }
}

/// Times the kernels on images of a size, and `peers` on the same buffers.
pub(crate) fn measure(
    bench: &mut Bencher,
    size: Size,
    content: Content,
    photo: &Photo,
    peers: &[cuda_cpp::Kernel],
) -> Result {
    let scene = Scene::new(bench, size, content, photo)?;
    if size.images == 1 {
        let mut planes = textures(bench, &scene, peers)?;
        means(bench, &scene, &mut planes)?;
        analyze(bench, &scene, &planes[0])?;
        compress(bench, &scene, &planes[0])?;
    }
    batch::measure(bench, &scene)
}

/// Measures the texture array in f32, also by `peers`, and in halves. Returns buffers of planes, of
/// which the first holds those of the image.
fn textures(bench: &mut Bencher, scene: &Scene, peers: &[cuda_cpp::Kernel]) -> Result<Vec<Buffer<f32>>> {
    let Scene { size: Size { name, height, width, .. }, content, .. } = *scene;
    let (pixels, stream) = (scene.size.pixels(), bench.stream);
    let mut planes = bench.sets::<f32>(13 * pixels)?;
    let sets = planes.len();
    if bench.wants("textures") {
        for peer in peers {
            let time = bench.time(1, |i| peer.launch(stream, scene.size, scene.image(i)?, &mut planes[i % sets]))?;
            bench.row_by(peer.by(), "textures", content, name, time, 55 * pixels)?;
        }
    }
    let mut launch = |i: usize| {
        let to = &mut planes[i % sets];
        Ok(kernels::textures(&stream, height, width, FIXATION, FIXATION, scene.image(i)?, to)?)
    };
    launch(0)?;
    if bench.wants("textures") {
        let time = bench.time(1, launch)?;
        bench.row("textures", content, name, time, 55 * pixels)?;
    }
    Ok(planes)
}

/// Measures features and entropy that are computed from planes in memory.
fn means(bench: &mut Bencher, scene: &Scene, planes: &mut [Buffer<f32>]) -> Result {
    let Scene { size: Size { name, height, width, .. }, content, .. } = *scene;
    let (pixels, sets, stream) = (scene.size.pixels(), planes.len(), bench.stream);
    let (mut features, mut entropy) = (stream.alloc(13 * scene.patches())?, stream.alloc(scene.patches())?);
    if bench.wants("features") {
        let time = bench.time(1, |i| {
            let planes = &planes[i % sets];
            Ok(kernels::features(&stream, height, width, PATCH, planes, &mut features)?)
        })?;
        bench.row("features", content, name, time, 52 * pixels)?;
    }
    if bench.wants("entropy") {
        let time =
            bench.time(1, |i| Ok(kernels::entropy(&stream, height, width, PATCH, scene.image(i)?, &mut entropy)?))?;
        bench.row("entropy", content, name, time, 3 * pixels)?;
    }
    if bench.wants("textures + features") {
        let time = bench.time(2, |i| {
            let planes = &mut planes[i % sets];
            kernels::textures(&stream, height, width, FIXATION, FIXATION, scene.image(i)?, planes)?;
            Ok(kernels::features(&stream, height, width, PATCH, planes, &mut features)?)
        })?;
        bench.row("textures + features", content, name, time, 107 * pixels)?;
    }
    Ok(())
}

/// Measures features and entropy that are computed from the image, and checks them against those
/// computed from planes.
fn analyze(bench: &mut Bencher, scene: &Scene, planes: &DeviceSlice<Bench, f32>) -> Result {
    if !bench.wants("analyze") {
        return Ok(());
    }
    let Scene { size: Size { name, height, width, .. }, content, layout, table, .. } = scene;
    let (n, stream) = (scene.patches(), bench.stream);
    let (mut features, mut entropy) = (stream.alloc::<f32>(13 * n)?, stream.alloc::<f32>(n)?);
    kernels::features(&stream, *height, *width, PATCH, planes, &mut features)?;
    kernels::entropy(&stream, *height, *width, PATCH, scene.image(0)?, &mut entropy)?;
    let want = [stream.read_blocking(&features)?, stream.read_blocking(&entropy)?];
    // If the image starts one byte later, no row starts at a word.
    let mut odd = bench.sets(scene.batch(0).len() + 1)?;
    for odd in &mut odd {
        stream.copy(scene.batch(0), odd.slice_mut(1..)?)?;
    }
    for (kernel, images, start) in [("analyze", &scene.rgb, 0), ("analyze, unaligned", &odd, 1)] {
        stream.fill(&mut features, f32::NAN)?;
        let mut launch = |i: usize| {
            let rgb = images[i % images.len()].slice(start..)?;
            analyze_into(&stream, layout, table, rgb, &mut features, &mut entropy)
        };
        launch(0)?;
        let time = bench.time(1, launch)?;
        compare("features", &stream.read_blocking(&features)?, &want[0], 3e-6)?;
        compare("entropy", &stream.read_blocking(&entropy)?, &want[1], 3e-6)?;
        bench.row(kernel, *content, name, time, 3 * scene.size.pixels())?;
    }
    Ok(())
}

pub(crate) fn analyze_into<S: LiveBrand>(
    stream: &Stream<S>,
    layout: &BatchLayout,
    table: &DeviceSlice<S, u32>,
    rgb: &DeviceSlice<S, u8>,
    features: &mut DeviceSlice<S, f32>,
    entropy: &mut DeviceSlice<S, f32>,
) -> Result {
    let pixels = layout.pixels(rgb, [FIXATION; 2]);
    Ok(kernels::analyze(stream, &layout.batch(table), &pixels, features, entropy)?)
}

/// Selected patches, as `allocate` would leave them.
struct Selection {
    sides: Buffer<i32>,
    cu_seqlens: Buffer<i32>,
    patch_id: Buffer<i32>,
    counts: Buffer<u32>,
    selected: u32,
}

impl Selection {
    /// Selects as many patches of side `side` as the tokens allow, spread over the image.
    fn new(stream: Stream<Bench>, patches: usize, side: i32) -> Result<Self> {
        let k = (TOKENS as i32 / (side * side)).min(patches as i32) as usize;
        let (mut sides, mut cu_seqlens, mut patch_id) = (vec![0; patches], vec![0], vec![]);
        for i in 0..k {
            let id = i * patches / k;
            sides[id] = side;
            patch_id.push(id as i32);
            cu_seqlens.push((i as i32 + 1) * side * side);
        }
        Ok(Self {
            sides: stream.upload_blocking(&sides)?,
            cu_seqlens: stream.upload_blocking(&cu_seqlens)?,
            patch_id: stream.upload_blocking(&patch_id)?,
            counts: stream.upload_blocking(&[cu_seqlens[k] as u32, k as u32])?,
            selected: k as u32,
        })
    }
}

/// Measures the tokens of patches at side 8 and at side 20, from the image and from planes.
fn compress(bench: &mut Bencher, scene: &Scene, planes: &DeviceSlice<Bench, f32>) -> Result {
    let Scene { size: Size { name, height, width, .. }, content, .. } = *scene;
    let stream = bench.stream;
    for side in [8, 20] {
        let [by_image, by_planes] = ["compress_fused", "compress"].map(|kernel| format!("{kernel}, side {side}"));
        if !bench.wants(&by_image) && !bench.wants(&by_planes) {
            continue;
        }
        let Selection { sides, cu_seqlens, patch_id, counts, selected } =
            &Selection::new(stream, scene.patches(), side)?;
        let selection = kernels::Selection { sides, cu_seqlens, patch_id, counts, most: *selected };
        let (mut tokens, mut position) = (stream.alloc_zeroed(13 * TOKENS)?, stream.alloc_zeroed(2 * TOKENS)?);
        let fused = bench.time(1, |i| {
            let (batch, pixels) =
                (scene.layout.batch(&scene.table), scene.layout.pixels(scene.batch(i), [FIXATION; 2]));
            let out = TokensMut { tokens: &mut tokens, position: &mut position, capacity: TOKENS as u32 };
            Ok(kernels::compress_fused(&stream, &batch, &pixels, &selection, out)?)
        })?;
        let got = [stream.read_blocking(&tokens)?, stream.read_blocking(&position)?];
        stream.zero(&mut tokens)?;
        stream.zero(&mut position)?;
        let materialised = bench.time(1, |_| {
            let out = TokensMut { tokens: &mut tokens, position: &mut position, capacity: TOKENS as u32 };
            Ok(kernels::compress(&stream, height, width, PATCH, planes, &selection, out)?)
        })?;
        compare("tokens", &got[0], &stream.read_blocking(&tokens)?, 3e-6)?;
        compare("position", &got[1], &stream.read_blocking(&position)?, 0.0)?;
        let pixels = *selected as usize * (PATCH * PATCH) as usize;
        bench.row(&by_image, content, name, fused, 3 * pixels + 60 * TOKENS)?;
        bench.row(&by_planes, content, name, materialised, 52 * pixels + 60 * TOKENS)?;
    }
    Ok(())
}
