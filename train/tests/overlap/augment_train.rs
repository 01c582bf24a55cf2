//! Uploads, augmentation and training.

use testkit::devices::alone;
use testkit::gate::{Gate, guarded};
use thalweg::{Device, DeviceBuffer, DeviceKind, DeviceSlice, LiveBrand, Ring, Stream, Timeline};
use thalweg_kernels::train::patches;
use thalweg_train::overlap::{Augmented, AugmentedOn, augment_train};
use thalweg_train::{DeviceBatch, Loss, Result, TokenTransformer};
use thalweg_vision::augment::{AugmentInput as Augmenting, Augmentation};

use crate::common::{Bits, done, everywhere_and_seeded, lanes, model, results, synchronize};
use crate::support::{Random, base_config, devices};

/// The images of a batch, their size, and that of augmented ones, in patches of 4 x 4 pixels.
const AUGMENTED: (usize, [u32; 2], usize) = (3, [20, 28], 16);

/// Uploads the images and labels of an item, and says what happens to the images.
pub(crate) fn prepare<S: LiveBrand>(s: &Stream<S>, item: usize, batch: &mut AugmentedOn<S, f32>) -> Result<()> {
    let (images, [height, width], _) = AUGMENTED;
    let mut random = Random(item as u64);
    let pixels: Vec<u8> = (0..batch.rgb.len()).map(|_| random.word() as u8).collect();
    let labels: Vec<i32> = (0..images).map(|_| random.below(4) as i32).collect();
    let host = s.bind((s.device().pinned_from(&pixels)?, s.device().pinned_from(&labels)?))?;
    s.copy_to_device(&host.0, &mut batch.rgb)?;
    s.copy_to_device(&host.1, &mut batch.labels)?;
    let sample = |i: usize| {
        let parameters = Augmentation::default().parameters(5, 1, (3 * item + i) as u64, width, height)?;
        Ok(Augmenting { start: i * 3 * (height * width) as usize, height, width, parameters })
    };
    let samples = (0..images).map(sample).collect::<thalweg::Result<Vec<_>>>()?;
    Ok(batch.augmenter.prepare(s, &samples)?)
}

pub(crate) fn augmented_slots<S: LiveBrand>(s: &Stream<S>, count: usize) -> Ring<Augmented<f32>> {
    let (images, [height, width], size) = AUGMENTED;
    let bytes = images * 3 * (height * width) as usize;
    (0..count).map(|_| Augmented::new(s, &Augmentation::default(), bytes, size as u32, images).unwrap()).collect()
}

/// A model that takes the patches of images as tokens, and the memory for them.
pub(crate) struct OnPatches<S: LiveBrand> {
    model: TokenTransformer<S, f32>,
    tokens: thalweg::On<S, DeviceBuffer<f32>>,
    position: thalweg::On<S, DeviceBuffer<f32>>,
    cu_seqlens: thalweg::On<S, DeviceBuffer<i32>>,
}

impl<S: LiveBrand> OnPatches<S> {
    pub(crate) fn new(s: &Stream<S>) -> Self {
        let (images, _, size) = AUGMENTED;
        let patches = (size / 4).pow(2);
        let ends: Vec<i32> = (0..=images).map(|i| (i * patches) as i32).collect();
        Self {
            model: model(s, base_config().with_input_dim(48)),
            tokens: s.alloc(images * patches * 48).unwrap(),
            position: s.upload_blocking(&Random(1).numbers(2 * images * patches)).unwrap(),
            cu_seqlens: s.upload_blocking(&ends).unwrap(),
        }
    }

    pub(crate) fn learn(
        &mut self,
        s: &Stream<S>,
        images: &DeviceSlice<S, f32>,
        labels: &DeviceSlice<S, i32>,
    ) -> Result<Loss> {
        let (count, _, size) = AUGMENTED;
        patches(s, [count as u32, 3, size as u32, 4], images, &mut self.tokens)?;
        let Self { model, tokens, position, cu_seqlens } = self;
        model.step_on(&DeviceBatch { tokens, position, cu_seqlens, labels, padded: false })
    }
}

fn augment<U: LiveBrand, A: LiveBrand, B: LiveBrand>(
    streams: (&Stream<U>, &Stream<A>, &Stream<B>),
    count: usize,
) -> Bits {
    let (mut slots, mut learner, mut losses) =
        (augmented_slots(streams.0, count), OnPatches::new(streams.2), Vec::new());
    let learn = |s: &Stream<B>, _, images: &DeviceSlice<B, f32>, labels: &DeviceSlice<B, i32>| {
        losses.push(learner.learn(s, images, labels)?);
        Ok(())
    };
    augment_train(streams, &mut slots, 0..5, prepare, learn, &Timeline::disabled()).unwrap();
    assert_eq!(slots.len(), count);
    results(losses, &learner.model)
}

#[test]
fn augmentation_beside_training_has_the_bits_of_one_after_the_other() {
    let _alone = alone();
    let cpu = Device::cpu().unwrap();
    everywhere_and_seeded(|device| {
        let [lane] = lanes(if device.kind() == DeviceKind::Cpu { cpu } else { device });
        let serial = lane.enter(|s| augment((s, s, s), 1));
        let [a, b, c] = lanes(device);
        for count in 1..4 {
            let overlapped = a.enter(|a| b.enter(|b| c.enter(|c| augment((a, b, c), count))));
            assert!(overlapped == serial, "{device}: {count} slots");
        }
    });
}

/// While one stream stands at a gate, the two others complete what they are given: the upload of an
/// item beside augmentation and training of those before, augmentation of the next items beside
/// training.
#[test]
fn uploads_augmentation_and_training_go_on_without_one_another() {
    let _alone = alone();
    for &device in devices() {
        let lanes: [_; 3] = lanes(device);
        for held in 0..3 {
            lanes[0].enter(|upload| {
                lanes[1].enter(|change| {
                    lanes[2].enter(|train| {
                        let (mut slots, mut learner) = (augmented_slots(upload, 4), OnPatches::new(train));
                        let (streams, off) = ((upload, change, train), Timeline::disabled());
                        let mut first =
                            |s: &Stream<_>, _, images: &DeviceSlice<_, f32>, labels: &DeviceSlice<_, i32>| {
                                learner.learn(s, images, labels)?.item().map(drop)
                            };
                        augment_train(streams, &mut slots, 0..4, prepare, &mut first, &off).unwrap();
                        let gate = Gate::closed(device);
                        guarded(&[&gate], || {
                            let others_are_done = || {
                                (0..3).filter(|&k| k != held).for_each(|k| synchronize(&lanes[k]));
                                let want: Vec<_> = (0..3).map(|k| k != held).collect();
                                assert_eq!(done(&lanes), want, "{device}: {held} is held");
                                gate.open();
                            };
                            let input = |s: &Stream<_>, n: usize, batch: &mut AugmentedOn<_, f32>| {
                                match (n, held) {
                                    (2, 0) => gate.hold(s),
                                    (2, 1) => gate.hold(change),
                                    _ => {}
                                }
                                prepare(s, n, batch)?;
                                if n == 2 && held < 2 {
                                    others_are_done(); // items 0 and 1, and for augmentation the upload of item 2
                                }
                                Ok(())
                            };
                            let learn =
                                |s: &Stream<_>, n, images: &DeviceSlice<_, f32>, labels: &DeviceSlice<_, i32>| {
                                    if (n, held) == (0, 2) {
                                        gate.hold(s);
                                    }
                                    learner.learn(s, images, labels)?;
                                    if (n, held) == (2, 2) {
                                        others_are_done(); // items 0 to 2 are augmented, and training on item 0 is held
                                    }
                                    Ok(())
                                };
                            augment_train(streams, &mut slots, 0..4, input, learn, &off).unwrap();
                        });
                        train.synchronize().unwrap();
                    });
                });
            });
        }
    }
}
