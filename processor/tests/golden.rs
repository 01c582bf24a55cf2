//! Golden files, and digests of whole photographs.

use serde_json::Value;
use testkit::files::repository;
use thalweg::Size;
use thalweg_processor::grids::{self, PatchGrid, WindowIndex};
use thalweg_processor::{
    AxisCoefficients, CLIP, ColorStatistics, HALF, HostInputs, IMAGENET, InputFormat, InterpolatedPlaces, Processor,
    ProcessorParams, ResampleFilter, Resampler, RopePositions, Style, TokenSequences, TransformersVersion, pack,
    resize, siglip2_positions, sizes,
};

use crate::files::{Bytes, Golden, Photo, digest, views};

pub(crate) fn filter(name: &str) -> ResampleFilter {
    match name {
        "box" => ResampleFilter::Box,
        "bilinear" => ResampleFilter::Bilinear,
        "hamming" => ResampleFilter::Hamming,
        "bicubic" => ResampleFilter::Bicubic,
        "lanczos" => ResampleFilter::Lanczos,
        _ => panic!("{name}"),
    }
}

pub(crate) fn resampler(name: &str) -> Resampler {
    match name {
        "pil" => Resampler::Pil,
        "pil-12.2" => Resampler::Pil12_2,
        "pil-13" => Resampler::Pil13,
        "aten" => Resampler::Aten,
        _ => panic!("{name}"),
    }
}

fn style(name: &str) -> Style {
    match name {
        "slow" => Style::Slow,
        "fast" => Style::Fast,
        "totensor" => Style::ToTensor,
        _ => panic!("{name}"),
    }
}

#[test]
fn coefficients() {
    let golden = Golden::read("coefficients");
    let mut count = 0;
    for name in golden.names().iter().filter_map(|name| name.strip_suffix(".k")) {
        let [f, m, samples, outputs] = name.split('.').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let outputs = outputs.parse().unwrap();
        let axis = AxisCoefficients::new(samples.parse().unwrap(), outputs, filter(f), resampler(m)).unwrap();
        let bounds: Vec<_> = (0..axis.outputs()).map(|i| axis.bounds(i)).collect();
        let taps = bounds.iter().map(|[_, count]| *count as usize).max().unwrap();
        let row = |i| axis.weights(i).iter().copied().chain([0].into_iter().cycle()).take(taps);
        let k: Vec<i32> = (0..axis.outputs()).flat_map(row).collect();
        golden.assert_equal(&format!("{name}.k"), &[axis.outputs(), taps], &k);
        let bounds: Vec<i32> = bounds.into_iter().flatten().map(|n| n as i32).collect();
        golden.assert_equal(&format!("{name}.bounds"), &[axis.outputs(), 2], &bounds);
        golden.assert_equal(&format!("{name}.shift"), &[1], &[axis.shift() as i32]);
        count += 1;
    }
    assert!(count > 40, "{count}");
}

#[test]
fn resized_levels() {
    let golden = Golden::read("resample");
    let mut count = 0;
    for name in golden.names().iter().filter(|name| !name.starts_with("image.")) {
        // FILTER.MODE.NAME.HxW.OUTHxOUTW, and a mode may have a point.
        let (f, rest) = name.split_once('.').unwrap();
        let parts: Vec<_> = rest.rsplitn(4, '.').collect();
        let [to, from, photo, mode] = parts[..] else { panic!("{name}") };
        let to: Vec<u32> = to.split('x').map(|n| n.parse().unwrap()).collect();
        let image = golden.image(&format!("image.{photo}.{from}")).unwrap();
        let rgb = resize(image.view(), Size::new(to[0], to[1]), filter(f), resampler(mode)).unwrap();
        golden.assert_equal(name, &[to[0] as usize, to[1] as usize, 3], &rgb);
        count += 1;
    }
    assert!(count > 150, "{count}");
}

#[test]
fn tables_of_levels() {
    let golden = Golden::read("tables");
    for name in golden.names() {
        let (statistics, s) = name.split_once('.').unwrap();
        let statistics: ColorStatistics = match statistics {
            "clip" => CLIP,
            "half" => HALF,
            _ => IMAGENET,
        };
        let params = ProcessorParams::siglip(8).with_statistics(statistics).with_style(style(s));
        golden.assert_equal(&name, &[3, 256], Processor::new(params).unwrap().levels().as_flattened());
    }
}

#[test]
fn sizes_after_the_resize() {
    let golden = Golden::read("sizes");
    let column = |name: &str| golden.numbers(name, i32::from_le_bytes);
    let pairs = |name: &str| column(name).as_chunks::<2>().0.to_vec();
    let given: Vec<[u32; 2]> = pairs("size").into_iter().map(|pair| pair.map(|n| n as u32)).collect();
    let check = |name: &str, size: &dyn Fn(Size) -> Size| {
        for (given, expected) in given.iter().zip(pairs(name)) {
            assert_eq!(size((*given).into()).sides().map(|n| n as i32), expected, "{name} of {given:?}");
        }
    };
    let qwen = |f, lo, hi| move |size| sizes::smart_resize(size, f, lo, hi).unwrap_or_default();
    check("qwen2.5-vl", &qwen(28, 3136, 12_845_056));
    check("qwen2-vl-class-default", &qwen(28, 3136, 1_003_520));
    check("qwen3-vl", &qwen(32, 65_536, 16_777_216));
    for (name, patch, most) in [("naflex-16-256", 16, 256), ("naflex-14-1024", 14, 1024), ("naflex-16-784", 16, 784)] {
        check(name, &|size| sizes::naflex_size(size, patch, most).unwrap());
    }
    let columns_first = |grid: Size| Size::new(grid.width, grid.height);
    check("internvl-columns-rows-448-1-12", &|size| columns_first(sizes::tile_grid(size, 448, 1, 12)));
    check("internvl-columns-rows-448-2-6", &|size| columns_first(sizes::tile_grid(size, 448, 2, 6)));
    // A long image becomes longer than a resize can make it.
    let exact = |[h, w]: [u32; 2]| {
        let long = |long: u32, short: u32| (224 * u64::from(long) / u64::from(short)) as u32;
        if w <= h { [long(h, w), 224] } else { [224, long(w, h)] }
    };
    check("clip-224", &|size| match sizes::shortest_edge(size, 224) {
        Ok(resized) => resized,
        Err(_) => Some(exact(size.sides())).filter(|sides| sides.iter().any(|side| *side > 65535)).unwrap().into(),
    });
    let canvases: Vec<_> = (1..=6).flat_map(|a| (1..=6).map(move |b| Size::new(384 * a, 384 * b))).collect();
    check("onevision-canvas", &|size| sizes::anyres(size, &canvases).unwrap().canvas);
    check("onevision-inner", &|size| sizes::anyres(size, &canvases).unwrap().resized);
}

fn number(parameters: &Value, key: &str) -> u32 {
    u32::try_from(parameters[key].as_u64().unwrap_or_else(|| panic!("{key}"))).unwrap()
}

/// The parameters of a golden file of a layout.
pub(crate) fn params(name: &str, golden: &Golden) -> ProcessorParams {
    let parameters = golden.json("parameters");
    let n = |key| number(&parameters, key);
    let (start, format) = match name {
        "qwen2.5-vl-small" | "qwen2.5-vl-bounded" | "qwen3-vl" => {
            let (start, patch) = match name {
                "qwen3-vl" => (ProcessorParams::qwen3_vl(), n("patch")),
                _ => (ProcessorParams::qwen2_vl(), 14),
            };
            let [min_pixels, max_pixels] = ["min_pixels", "max_pixels"].map(|key| u64::from(n(key)));
            (start, InputFormat::Qwen { patch, merge: 2, min_pixels, max_pixels })
        }
        "siglip2-naflex" => {
            let (patch, max_patches) = (n("patch"), n("max_patches"));
            (ProcessorParams::siglip2_naflex(1), InputFormat::NaFlex { patch, max_patches, packed: false })
        }
        "internvl" => {
            let [tile, min_tiles, max_tiles] = ["tile", "lo", "hi"].map(n);
            (ProcessorParams::internvl(), InputFormat::Tiles { tile, min_tiles, max_tiles })
        }
        "llava-onevision" => {
            let canvases: Vec<[u32; 2]> = serde_json::from_value(parameters["pinpoints"].clone()).unwrap();
            let canvases = canvases.into_iter().map(Size::from).collect();
            (ProcessorParams::llava_onevision(), InputFormat::AnyRes { tile: n("size"), canvases })
        }
        "clip" => (ProcessorParams::clip(1), InputFormat::Crop { edge: n("size"), crop: n("crop") }),
        "siglip" => (ProcessorParams::siglip(1), InputFormat::Square { size: n("size") }),
        _ => panic!("{name}"),
    };
    start.with_format(format).with_resampler(Resampler::Pil).with_style(Style::Slow)
}

pub(crate) const LAYOUTS: [&str; 8] = [
    "qwen2.5-vl-small",
    "qwen2.5-vl-bounded",
    "qwen3-vl",
    "siglip2-naflex",
    "internvl",
    "llava-onevision",
    "clip",
    "siglip",
];

#[test]
fn pixel_values_and_the_tensors_beside_them() {
    for name in LAYOUTS {
        let golden = Golden::read(name);
        let (images, params) = (golden.images(), params(name, &golden));
        assert!(images.len() > 1);
        let HostInputs { pixel_values, layout } =
            Processor::new(params.clone()).unwrap().process::<f32>(&views(&images)).unwrap();
        golden.assert_equal("pixel_values", &layout.shape(), &pixel_values);
        let n = images.len();
        let flat = |rows: Option<Vec<[i64; 2]>>| rows.map(|rows| rows.into_flattened());
        if let Some(grid) = layout.image_grid_thw() {
            golden.assert_equal("image_grid_thw", &[n, 3], grid.as_flattened());
            golden.assert_equal("cu_seqlens", &[n + 1], &layout.cu_seqlens().unwrap());
            let ids = flat(layout.vision_position_ids()).unwrap();
            golden.assert_equal("vision_position_ids", &[ids.len() / 2, 2], &ids);
        }
        if name.starts_with("qwen2.5") {
            let WindowIndex { order, cu_seqlens: ends } = layout.window_index(112).unwrap();
            golden.assert_equal("window_index", &[order.len()], &order);
            golden.assert_equal("cu_window_seqlens", &[ends.len()], &ends);
        }
        if let Some(mask) = layout.pixel_attention_mask() {
            golden.assert_equal("pixel_attention_mask", &[n, mask.len() / n], &mask);
            golden.assert_equal("spatial_shapes", &[n, 2], &flat(layout.spatial_shapes()).unwrap());
        }
        if let Some(tiles) = layout.num_patches() {
            golden.assert_equal("num_patches", &[n], &tiles);
            let other = Processor::new(params.clone().with_style(Style::ToTensor)).unwrap();
            let other = other.process::<f32>(&views(&images)).unwrap();
            golden.assert_equal("pixel_values.totensor", &layout.shape(), &other.pixel_values);
        }
        if let Some(sizes) = flat(layout.image_sizes()) {
            golden.assert_equal("image_sizes", &[n, 2], &sizes);
        }
        if let Some(expected) = golden.meta.get("sha256.pixel_values.fast") {
            let fast = Processor::new(params.with_style(Style::Fast).with_resampler(Resampler::Aten)).unwrap();
            let fast = fast.process::<f32>(&views(&images)).unwrap();
            assert_eq!(digest(&fast.pixel_values.bytes()), *expected, "{name}, fast");
        }
    }
}

#[test]
fn position_ids_of_language_models() {
    for name in ["qwen2.5-vl-small", "qwen2.5-vl-bounded", "qwen3-vl"] {
        let golden = Golden::read(name);
        let ids = golden.numbers("input_ids", i64::from_le_bytes);
        let tokens = TokenSequences { input_ids: &ids, length: ids.len(), attention_mask: None, image_token: 9 };
        for version in [TransformersVersion::V4, TransformersVersion::V5] {
            let RopePositions { position_ids, rope_deltas } =
                RopePositions::new(tokens, &grids_of(&golden), 2, version).unwrap();
            golden.assert_equal("position_ids", &[3, 1, ids.len()], &position_ids);
            golden.assert_equal("rope_deltas", &[1, 1], &rope_deltas);
        }
    }
}

fn grids_of(golden: &Golden) -> Vec<PatchGrid> {
    let rows = golden.numbers("image_grid_thw", i64::from_le_bytes);
    let grid = |[t, h, w]: &[i64; 3]| PatchGrid { frames: *t as u32, rows: *h as u32, columns: *w as u32 };
    rows.as_chunks::<3>().0.iter().map(grid).collect()
}

#[test]
fn interpolated_position_embeddings() {
    let golden = Golden::read("qwen3-vl");
    let table = golden.numbers("pos_embed.weight", f32::from_le_bytes);
    let grids = grids_of(&golden);
    let patches = grids::cu_seqlens(&grids)[grids.len()] as usize;
    let places = InterpolatedPlaces::new(&grids, 48, 2, TransformersVersion::V4).unwrap();
    let transposed: Vec<i64> = (0..4).flat_map(|k| places.indices.iter().map(move |four| four[k])).collect();
    golden.assert_equal("pos_indices", &[4, patches], &transposed);
    let transposed: Vec<f32> = (0..4).flat_map(|k| places.weights.iter().map(move |four| four[k])).collect();
    golden.assert_equal("pos_weights", &[4, patches], &transposed);
    golden.assert_equal("pos_embeds", &[patches, 8], &places.embeddings(&table, 8).unwrap());
    let places = InterpolatedPlaces::new(&grids, 48, 2, TransformersVersion::V5).unwrap();
    golden.assert_equal("pos_embeds.transformers5", &[patches, 8], &places.embeddings(&table, 8).unwrap());
}

#[test]
fn position_embeddings_of_siglip2() {
    let golden = Golden::read("siglip2-naflex");
    let table = golden.numbers("position_embedding.weight", f32::from_le_bytes);
    let shapes = golden.numbers("position_shapes", i64::from_le_bytes);
    let shapes: Vec<Size> = shapes.as_chunks::<2>().0.iter().map(|pair| pair.map(|n| n as u32).into()).collect();
    let expected = golden.numbers("position_embeddings", f32::from_le_bytes);
    let most = expected.len() / 8 / shapes.len();
    let made = siglip2_positions(&table, 8, &shapes, most).unwrap();
    assert_eq!(made.len(), expected.len());
    for (i, (made, expected)) in made.iter().zip(&expected).enumerate() {
        assert!((made - expected).abs() < 1e-6, "{i}: {made} and {expected}");
    }
}

#[test]
fn packing() {
    let golden = Golden::read("packing");
    let lengths: Vec<u32> = golden.numbers("lengths", u32::from_le_bytes);
    let bins: Vec<i32> = pack(&lengths, 4096).unwrap().into_iter().map(|bin| bin as i32).collect();
    golden.assert_equal("bins", &[lengths.len()], &bins);
}

/// The parameters of an entry of `digests.json`: LAYOUT.RESAMPLER.STYLE.
pub(crate) fn named(name: &str) -> ProcessorParams {
    let parts: Vec<_> = name.rsplitn(3, '.').collect();
    let [s, r, layout] = parts[..] else { panic!("{name}") };
    let params = match layout {
        "qwen2.5-vl" => ProcessorParams::qwen2_vl(),
        "qwen2-vl-class-default" => {
            let format = InputFormat::Qwen { patch: 14, merge: 2, min_pixels: 3136, max_pixels: 1_003_520 };
            ProcessorParams::qwen2_vl().with_format(format)
        }
        "qwen3-vl" => ProcessorParams::qwen3_vl(),
        "siglip2-naflex-16-256" => ProcessorParams::siglip2_naflex(256),
        "siglip2-naflex-16-1024" => ProcessorParams::siglip2_naflex(1024),
        "internvl-448-12" => ProcessorParams::internvl(),
        "clip-224" => ProcessorParams::clip(224),
        "siglip-384" => ProcessorParams::siglip(384),
        _ => panic!("{name}"),
    };
    params.with_resampler(resampler(r)).with_style(style(s))
}

/// The entries of `digests.json` by photograph: the name of the parameters, and the tensors.
pub(crate) fn digests() -> Vec<(String, Vec<(String, Value)>)> {
    let file = std::fs::read(repository("tests/golden/processor/digests.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let mut photos: Vec<(String, Vec<(String, Value)>)> = Vec::new();
    for (key, tensors) in file["digests"].as_object().unwrap() {
        let (photo, name) = key.split_once('.').unwrap();
        if photos.last().is_none_or(|(last, _)| last != photo) {
            photos.push((photo.into(), Vec::new()));
        }
        photos.last_mut().unwrap().1.push((name.into(), tensors.clone()));
    }
    photos
}

#[track_caller]
pub(crate) fn assert_entry<T>(entry: &Value, what: &str, shape: &[usize], numbers: &[T])
where
    [T]: Bytes,
{
    let (expected, _, hash): (Vec<usize>, String, String) = serde_json::from_value(entry.clone()).unwrap();
    assert_eq!((shape, digest(&numbers.bytes())), (&*expected, hash), "{what}");
}

#[test]
fn digests_of_whole_photographs() {
    let mut count = 0;
    for (photo, entries) in digests() {
        let image = Photo::read(&photo);
        for (name, tensors) in entries {
            let made = Processor::new(named(&name)).unwrap().process::<f32>(&[image.view()]).unwrap();
            let layout = made.layout;
            for (tensor, entry) in tensors.as_object().unwrap() {
                let what = format!("{photo}.{name}: {tensor}");
                match &**tensor {
                    "pixel_values" => assert_entry(entry, &what, &layout.shape(), &made.pixel_values),
                    "image_grid_thw" => {
                        assert_entry(entry, &what, &[1, 3], layout.image_grid_thw().unwrap().as_flattened());
                    }
                    "pixel_attention_mask" => {
                        let mask = layout.pixel_attention_mask().unwrap();
                        assert_entry(entry, &what, &[1, mask.len()], &mask);
                    }
                    "spatial_shapes" => {
                        assert_entry(entry, &what, &[1, 2], layout.spatial_shapes().unwrap().as_flattened());
                    }
                    "num_patches" => assert_entry(entry, &what, &[1], &layout.num_patches().unwrap()),
                    _ => panic!("{what}"),
                }
                count += 1;
            }
        }
    }
    assert!(count > 150, "{count}");
}
