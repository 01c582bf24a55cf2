//! The family `vision`: two images, in patches of 64 and of 32 pixels.

use thalweg_kernels::vision::{
    BatchLayout, Budget, ParticipatoryMut, RelevanceMut, Salience, Scores, Selection, SelectionMut, TokensMut,
    allocate, analyze, balance, compress, compress_fused, compress_fused_bf16, compress_fused_f16, entropy, features,
    gains, participatory, profile_sample, profile_scale, relevance, relevance_with_query, textures, top,
};
use thalweg_simt::host::LaunchError;

use crate::device::{Timed, buffer, noise, of, zeros};

/// Launches all kernels for images of these extents.
pub(crate) fn launch(on: &Timed, height: u32, width: u32) -> Result<(), LaunchError> {
    for patch in [64, 32] {
        let layout = BatchLayout::new(&[[height, width]; 2], patch).expect("a legal batch");
        let (n, bytes) = (layout.patches() as usize, layout.bytes() as usize);
        let table = of(layout.table());
        let (batch, rgb) = (layout.batch(table), buffer(bytes, noise));
        let pixels = layout.pixels(rgb, [0.5, 0.5]);
        let (means, bits) = (zeros::<f32>(13 * n), zeros::<f32>(n));
        analyze(on, &batch, &pixels, means, bits)?;
        let pieces = 12 * (n / 64 + 2);
        let how = Salience { edge: 8, least_peak: 1.0, foveal_bias: 0.1 };
        let (part, salience, summaries) = (zeros(n), zeros(n), zeros(pieces));
        let out = ParticipatoryMut { participatory: part, salience, summaries };
        participatory(on, &batch, how, means, bits, buffer(3400, |i| (i % 7) as f32 * 0.1), out)?;
        let mix = zeros(6);
        balance(on, &batch, summaries, buffer(18179, |i| (i % 5) as f32 * 0.01), false, mix)?;
        let map = zeros(n);
        relevance(on, &batch, 0.1, [0.5, 0.5], means, bits, RelevanceMut { salience, relevance: map })?;
        let scores = Scores { entropy: bits, participatory: part, summaries, mix };
        relevance_with_query(on, &batch, &scores, RelevanceMut { salience, relevance: map })?;
        let (tokens, selected) = (4000, 2 * 4000 / 64);
        let (sides, cu_seqlens, patch_id, counts) = (zeros(n), zeros(selected + 1), zeros(selected), zeros(2));
        let steps = of(&gains(8, 20, 0.8));
        let (image_cu_seqlens, image_cu_patches) = (zeros(3), zeros(3));
        let out = SelectionMut { sides, cu_seqlens, patch_id, counts, image_cu_seqlens, image_cu_patches };
        allocate(on, &batch, Budget { lo: 8, hi: 20, tokens }, map, steps, out)?;
        let selection = Selection { sides, cu_seqlens, patch_id, counts, most: selected as u32 };
        macro_rules! fused {
            ($($kernel:ident)*) => {$(
                let out = TokensMut { tokens: zeros(13 * 8000), position: zeros(2 * 8000), capacity: 8000 };
                $kernel(on, &batch, &pixels, &selection, out)?;
            )*};
        }
        fused!(compress_fused compress_fused_f16 compress_fused_bf16);
        if patch == 32 {
            let image = rgb.slice(..3 * height as usize * width as usize).expect("the first image");
            let count = (height.div_ceil(32) * width.div_ceil(32)) as usize;
            let planes = zeros::<f32>(13 * image.len() / 3);
            textures(on, height, width, 0.5, 0.5, image, planes)?;
            features(on, height, width, 32, planes, zeros(13 * count))?;
            entropy(on, height, width, 32, image, zeros(count))?;
            // Every patch has four tokens.
            let selection = Selection {
                sides: buffer(count, |_| 2),
                cu_seqlens: buffer(count + 1, |i| 4 * i as i32),
                patch_id: buffer(count, |i| i as i32),
                counts: buffer(2, |i| [4 * count as u32, count as u32][i] as _),
                most: count as u32,
            };
            let out =
                TokensMut { tokens: zeros(13 * 4 * count), position: zeros(8 * count), capacity: 4 * count as u32 };
            compress(on, height, width, 32, planes, &selection, out)?;
        }
    }
    profile(on, height, width)
}

/// Launches the kernels of the reference profile for one image.
fn profile(on: &Timed, height: u32, width: u32) -> Result<(), LaunchError> {
    let rgb = buffer((3 * height * width) as usize, noise);
    let (planes, information) = (zeros(13 * 1024), zeros(1024));
    profile_sample(on, 1, rgb.len() as u32, of(&[0, height, width]), rgb, planes)?;
    profile_scale(on, 1, planes, zeros(13 * 1024), information)?;
    top(on, 1, 1024, 200, information, zeros(200))
}
