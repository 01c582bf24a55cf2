//! Tokens that stay on the device: those of the host, for a stream that waits.

use testkit::devices::devices;
use thalweg::{AnyStream, Size};

use super::*;

/// Submits each image alone, and reads the results on another stream.
fn kept(pipeline: &Pipeline, images: &[Image]) -> Vec<Vec<u32>> {
    let stream = AnyStream::new(pipeline.device()).unwrap();
    let one = |image: &Image| {
        let sent = frame(pipeline, std::slice::from_ref(image)).and_then(|frame| pipeline.submit_kept(frame));
        stream.enter(|s| {
            let kept = s.wait(sent.unwrap()).unwrap();
            let words = s.read_blocking(kept.workspace().results()).unwrap();
            assert_eq!(s.read_blocking(kept.workspace().counts()).unwrap(), words[..2]);
            pipeline.recycle_kept(s.record(kept).unwrap());
            words
        })
    };
    images.iter().map(one).collect()
}

#[test]
fn kept_tokens_are_those_of_the_host() {
    for &device in devices() {
        // Fewer places than batches, so a batch that does not come back would stop the test.
        let pipeline = deep(device, small_params(), 2);
        let images: Vec<Image> = mixed().into_iter().chain(mixed()).collect();
        for turn in 0..2 {
            // Both kinds of batches take turns in one slot, and each has a graph of its own.
            let want = unwrap_all(pipeline.run(&images));
            for ((words, want), image) in kept(&pipeline, &images).iter().zip(&want).zip(&images) {
                let layout = pipeline.result_layout(&[image.size()]).unwrap();
                assert_eq!(words.len(), layout.words);
                let floats = |range: std::ops::Range<usize>| -> Vec<f32> {
                    words[range].iter().map(|word| f32::from_bits(*word)).collect()
                };
                let integers = |range: std::ops::Range<usize>| -> Vec<i32> {
                    words[range].iter().map(|word| word.cast_signed()).collect()
                };
                let (tokens, patches) = (want.len(), want.patch_id.len());
                assert_eq!(integers(layout.counts), [tokens as i32, patches as i32], "{device}, turn {turn}");
                let cu_seqlens = integers(layout.cu_seqlens);
                assert_eq!(cu_seqlens[..=patches], want.cu_seqlens, "{device}, turn {turn}");
                assert!(cu_seqlens[patches..].iter().all(|at| *at == tokens as i32), "{device}");
                assert_eq!(integers(layout.patch_id)[..patches], want.patch_id, "{device}");
                assert_eq!(integers(layout.image_cu_seqlens), [0, tokens as i32], "{device}");
                assert_eq!(floats(layout.tokens)[..13 * tokens], want.tokens, "{device}, turn {turn}");
                assert_eq!(floats(layout.position)[..2 * tokens], want.position, "{device}");
            }
        }
    }
}

/// Events that are dropped give their places back, as those of other tokens do, and so do pixels
/// that are on the device.
#[test]
fn dropped_events_and_pixels_of_the_device() {
    for &device in devices() {
        let pipeline = deep(device, small_params(), 1);
        let image = given(&noise(70, 90));
        let want = kept(&pipeline, std::slice::from_ref(&image));
        let stream = AnyStream::new(device).unwrap();
        for _ in 0..4 {
            drop(pipeline.submit_kept(frame(&pipeline, std::slice::from_ref(&image)).unwrap()).unwrap());
            let words = stream.enter(|s| {
                let mut rgb = image.rgb().to_vec();
                rgb.resize(rgb.len().next_multiple_of(16), 0);
                let pixels = s.record(s.upload_blocking(&rgb).unwrap()).unwrap();
                let (sent, pixels) = pipeline.submit_kept_pixels(&[Size::new(70, 90)], pixels).unwrap();
                let kept = s.wait(sent).unwrap();
                let words = s.read_blocking(kept.workspace().results()).unwrap();
                pipeline.recycle_kept(s.record(kept).unwrap());
                drop(pixels);
                words
            });
            assert_eq!(words, want[0], "{device}");
        }
        let short = stream.enter(|s| s.record(s.alloc_zeroed::<u8>(5).unwrap()).unwrap());
        let refused = pipeline.submit_kept_pixels(&[Size::new(70, 90)], short).unwrap_err();
        assert_eq!(refused.value.len(), 5, "{device}: {}", refused.error);
    }
}

/// A slot that has a graph without a download still downloads for who wants results on the host.
#[test]
fn a_graph_that_keeps_is_not_one_that_downloads() {
    for &device in devices() {
        let pipeline = deep(device, small_params(), 1);
        let [gray, pale] = [90, 200].map(|level| Image::new(70, 40, vec![level; 3 * 70 * 40]).unwrap());
        let first = unwrap_all(pipeline.run(std::slice::from_ref(&gray)));
        kept(&pipeline, &[gray.clone(), gray.clone(), gray]);
        let then = unwrap_all(pipeline.run(std::slice::from_ref(&pale)));
        let fresh = unwrap_all(deep(device, small_params(), 1).run(std::slice::from_ref(&pale)));
        assert_eq!(then[0].tokens, fresh[0].tokens, "{device}");
        assert_ne!(then[0].tokens, first[0].tokens, "{device}");
    }
}
