//! The patterns that begin with images in page-locked memory. Their floor is the longer one of two:
//! the upload alone, and all that follows it alone. A shape is searched for which both are about as
//! long.

use std::time::Instant;

use thalweg::simt::bf16;
use thalweg::{Device, DeviceSlice, LiveBrand, On, PinnedBuffer, Ring, Stream, Timeline};
use thalweg_kernels::train::patches;
use thalweg_train::overlap::{Augmented, AugmentedOn, Photographs, PhotographsOn, augment_train, texture_prefetch};
use thalweg_train::{DeviceBatch, Result, TokenTransformer, TokenTransformerConfig};
use thalweg_vision::augment::{AugmentInput, Augmentation};
use thalweg_vision::{PLANES, Pipeline, TokenParams};

use crate::support;

const RUNS: usize = 5;

/// Returns the seconds of an item: the median over some runs of `items` items.
fn each(items: usize, mut run: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    run(items.max(4))?;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        run(items)?;
        times.push(start.elapsed().as_secs_f64() / items as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

/// Returns the seconds of an upload of so many bytes.
fn upload<S: LiveBrand>(s: &Stream<S>, items: usize, bytes: usize) -> Result<f64> {
    let host = s.bind(s.device().pinned::<u8>(bytes)?)?;
    let mut there = s.alloc(bytes)?;
    each(items, |items| {
        for _ in 0..items {
            s.copy_to_device(&host, &mut there)?;
        }
        Ok(s.synchronize()?)
    })
}

fn report(name: &str, shape: &str, [up, rest, both]: [f64; 3]) {
    println!(
        "{name}, {shape}: upload {:.3} ms, the rest {:.3} ms, pipelined {:.3} ms: {:.3} x the longer one",
        up * 1e3,
        rest * 1e3,
        both * 1e3,
        both / up.max(rest)
    );
}

/// The page-locked pixels, if they are uploaded for each item.
fn pixels<S: LiveBrand>(s: &Stream<S>, bytes: usize, uploads: bool) -> Result<Option<On<S, PinnedBuffer<u8>>>> {
    Ok(if uploads { Some(s.bind(s.device().pinned::<u8>(bytes)?)?) } else { None })
}

/// Times `augment_train` on images of `side` x `side` pixels.
fn augment<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    (up, middle, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    [images, side, size, patch, width, depth]: [usize; 6],
    items: usize,
    uploads: bool,
) -> Result<f64> {
    let augmentation = Augmentation::default();
    let bytes = 3 * side * side;
    let slots = (0..3).map(|_| Augmented::<f32>::new(up, &augmentation, images * bytes, size as u32, images));
    let mut slots = slots.collect::<Result<Ring<_>>>()?;
    let heads = (width / 64).max(1);
    let config = TokenTransformerConfig::default()
        .with_input_dim(3 * patch * patch)
        .with_embed_dim(width)
        .with_num_heads(heads)
        .with_depth(depth);
    let mut model = TokenTransformer::<_, bf16>::new(train, config, 1)?;
    let pixels = pixels(up, images * bytes, uploads)?;
    let count = (size / patch).pow(2);
    let ends: Vec<i32> = (0..=images).map(|i| (i * count) as i32).collect();
    let (position, cu_seqlens) = (train.alloc_zeroed(2 * images * count)?, train.upload_blocking(&ends)?);
    let mut tokens = train.alloc::<f32>(images * count * config.input_dim)?;
    each(items, |items| {
        let input = |s: &Stream<U>, n: usize, batch: &mut AugmentedOn<U, f32>| {
            if let Some(pixels) = &pixels {
                s.copy_to_device(pixels, &mut batch.rgb)?;
            }
            let (height, width) = (side as u32, side as u32);
            let sample = |i: usize| {
                let parameters = augmentation.parameters(7, 0, (n * images + i) as u64, width, height)?;
                Ok(AugmentInput { start: i * bytes, height, width, parameters })
            };
            let samples = (0..images).map(sample).collect::<thalweg::Result<Vec<_>>>()?;
            Ok(batch.augmenter.prepare(s, &samples)?)
        };
        let learn = |s: &Stream<B>, _, pixels: &DeviceSlice<B, f32>, labels: &DeviceSlice<B, i32>| {
            patches(s, [images as u32, 3, size as u32, patch as u32], pixels, &mut tokens)?;
            let (position, cu_seqlens) = (&*position, &*cu_seqlens);
            model.step_on(&DeviceBatch { tokens: &tokens, position, cu_seqlens, labels, padded: false })?;
            Ok(())
        };
        augment_train((up, middle, train), &mut slots, 0..items, input, learn, &Timeline::disabled())?;
        Ok(train.synchronize()?)
    })
}

/// Times `texture_prefetch` on photographs of one size.
fn textures<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    (up, middle, train): (&Stream<U>, &Stream<A>, &Stream<B>),
    (images, size): (usize, [u32; 2]),
    (params, width, depth): (&TokenParams, usize, usize),
    items: usize,
    uploads: bool,
) -> Result<f64> {
    let pipeline = Pipeline::new(up.device(), params.clone())?;
    let sizes = vec![size.into(); images];
    let mut slots = (0..3).map(|_| Photographs::new(up, &pipeline, &sizes)).collect::<Result<Ring<_>>>()?;
    let config = TokenTransformerConfig::default()
        .with_input_dim(PLANES)
        .with_embed_dim(width)
        .with_num_heads((width / 64).max(1))
        .with_depth(depth);
    let mut model = TokenTransformer::<_, bf16>::new(train, config, 1)?;
    let pixels = pixels(up, images * 3 * (size[0] * size[1]) as usize, uploads)?;
    each(items, |items| {
        let input = |s: &Stream<U>, _, batch: &mut PhotographsOn<U>| match &pixels {
            Some(pixels) => Ok(s.copy_to_device(pixels, &mut batch.rgb)?),
            None => Ok(()),
        };
        texture_prefetch((up, middle), &mut model, &mut slots, 0..items, input, |_, _| Ok(()), &Timeline::disabled())?;
        Ok(train.synchronize()?)
    })
}

/// Measures `augment_train`. The side of the images is searched.
pub(crate) fn augmentation<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    device: Device,
    streams: (&Stream<U>, &Stream<A>, &Stream<B>),
) -> Result<()> {
    let ([images, size, patch, width, depth], mut side, items) =
        support::sized(device, ([64, 224, 16, 128, 1], 768, 20), ([2, 16, 4, 16, 1], 32, 2));
    let alone = (streams.2, streams.2, streams.2);
    let shape = |side| [images, side, size, patch, width, depth];
    for _ in 0..2 {
        let (up, rest) =
            (upload(streams.0, items, images * 3 * side * side)?, augment(alone, shape(side), items, false)?);
        let factor = (rest / up).sqrt();
        side = ((side as f64 * factor) as usize).clamp(size, support::sized(device, 1536, 64));
    }
    let up = upload(streams.0, items, images * 3 * side * side)?;
    let times = [up, augment(alone, shape(side), items, false)?, augment(streams, shape(side), items, true)?];
    report("augment_train", &format!("{images} images of {side} x {side} to {size} x {size}"), times);
    Ok(())
}

/// Measures `texture_prefetch`. Budget and number of blocks are searched.
pub(crate) fn photographs<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    device: Device,
    streams: (&Stream<U>, &Stream<A>, &Stream<B>),
) -> Result<()> {
    let (images, size, width, items) = support::sized(device, (16, [1080, 1920], 128, 20), (2, [64, 96], 16, 2));
    let up = upload(streams.0, items, images * 3 * (size[0] * size[1]) as usize)?;
    let alone = (streams.2, streams.2, streams.2);
    let mut chosen = None;
    for budget in support::sized(device, [1024, 256, 64], [64, 32, 16]) {
        let params = TokenParams::default().with_budget(budget).with_sides(2..=8);
        let rest = |depth| textures(alone, (images, size), (&params, width, depth), items, false);
        let [one, three] = [rest(1)?, rest(3)?];
        let block = ((three - one) / 2.0).max(1e-9);
        let depth = 1 + ((up - one) / block).round().clamp(0.0, 15.0) as usize;
        chosen = Some((params, depth));
        if one <= up {
            break;
        }
    }
    if let Some((params, depth)) = chosen {
        let model = (&params, width, depth);
        let rest = textures(alone, (images, size), model, items, false)?;
        let both = textures(streams, (images, size), model, items, true)?;
        let [height, across] = size;
        let shape = format!("{images} photographs of {height} x {across}, {} tokens, {depth} blocks", params.budget);
        report("texture_prefetch", &shape, [up, rest, both]);
    }
    Ok(())
}
